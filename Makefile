# Each target does everything on a fresh machine: environment, install, run.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TYPED := build/installed
# Each test runs on one thread: two at a time.
BOTH_CORES := -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-torch fuzz bench lint clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

# torch goes first and alone, so that its exact build is settled before anything asks for `torch`.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install -c constraints.txt -e ".[dev]"
	touch $@

demo: $(STAMP) ## train GPT-2 plain and under half of its memory, with pictures
	$(BIN)/fxmem demo

test: $(STAMP) ## the exact tests, under 10 minutes on two cores
	$(BIN)/pytest -q $(BOTH_CORES)

test-slow: $(STAMP) ## the exact tests that take longer
	$(BIN)/pytest -q -m slow

fuzz: $(STAMP) ## 2,000 random modules under random budgets against eager, about half an hour
	$(BIN)/pytest -q -m nightly $(BOTH_CORES) tests/fuzz

# Another version lives beside the usual one, in an environment of its own (several GB: CUDA's).
TORCH ?= 2.14.1
OTHER := .venv-torch-$(TORCH)

test-torch: ## the exact tests with another version: make test-torch TORCH=2.14.1
	test -x $(OTHER)/bin/python || $(PYTHON) -m venv $(OTHER)
	grep -vE '^(torch|setuptools|sympy)==' constraints.txt > $(OTHER)/constraints.txt
	$(OTHER)/bin/python -m pip install -q -c $(OTHER)/constraints.txt torch==$(TORCH)
	$(OTHER)/bin/python -m pip install -q -c $(OTHER)/constraints.txt -e ".[dev]" torch==$(TORCH)
	$(OTHER)/bin/pytest -q $(BOTH_CORES)

bench: $(STAMP) ## what is timed, against the alternatives
	$(BIN)/pytest -q -m benchmark tests/benchmarks -s

# A type checker cannot follow an editable install's mapping of solvers/ and visualize/, so it
# reads an installed copy. `build` is removed first: setuptools would reinstall deleted files.
lint: $(STAMP) ## ruff, and mypy on an installed copy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build
	$(BIN)/python -m pip install -q --no-deps --target $(TYPED) .
	cd $(TYPED) && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml \
		--cache-dir $(CURDIR)/.mypy_cache -p fxmem

clean: ## remove what was built, the environment included
	rm -rf $(VENV) build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find fxmem solvers visualize tests -name __pycache__ -type d -prune -exec rm -rf {} +
