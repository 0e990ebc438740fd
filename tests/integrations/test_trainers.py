"""Transformers' Trainer, Lightning and accelerate take an optimised module as it is."""

from __future__ import annotations

import copy
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import fxmem
from tests.modules import MLP

os.environ.setdefault("HF_HUB_OFFLINE", "1")


class Tokens(Dataset):
    """Sixteen rows of random tokens, their own labels."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rows = torch.randint(0, 100, (16, 16), generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = dict(n_layer=2, n_embd=32, n_head=2, n_positions=16, vocab_size=100)
    off = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return GPT2LMHeadModel(GPT2Config(**sizes, **off))


def close(found: nn.Module, wanted: nn.Module) -> None:
    for new, old in zip(found.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(new, old, rtol=1e-3, atol=1e-5)


def within(fitted: fxmem.FittedModule) -> None:
    rows = fitted.report().rows
    assert rows
    for plan, measured in rows:
        assert measured is not None and measured <= plan.budget_bytes


def test_transformers_trainer(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    def train(model: nn.Module, folder: str) -> None:
        arguments = TrainingArguments(
            output_dir=str(tmp_path / folder), max_steps=3, per_device_train_batch_size=4,
            gradient_accumulation_steps=2, report_to=[], save_strategy="no", use_cpu=True,
            disable_tqdm=True, remove_unused_columns=False, seed=1,
        )  # fmt: skip
        Trainer(model=model, args=arguments, train_dataset=Tokens()).train()

    eager, twin = gpt2(), gpt2()
    row = Tokens().rows[:4]
    examples = {"input_ids": row, "labels": row}
    base = fxmem.optimize(gpt2(), None, examples).plan
    gradients = sum(p.numel() * 4 for p in twin.parameters())
    above = base.peak_bytes - base.resident_bytes
    budget = base.resident_bytes + gradients + int(0.9 * above)  # a micro step has gradients
    fitted = fxmem.optimize(twin, budget, examples, time_limit=0.3)
    train(eager, "eager")
    train(fitted, "fitted")
    close(twin, eager)
    within(fitted)


def test_accelerate() -> None:
    from accelerate import Accelerator

    eager, args = MLP(), (torch.randn(8, 64), torch.randn(8, 64))
    twin = copy.deepcopy(eager)
    fitted = fxmem.optimize(twin, 1.0, args, time_limit=0.3)
    for model in (eager, fitted):
        accelerator = Accelerator(cpu=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        prepared, optimizer = accelerator.prepare(model, optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            accelerator.backward(prepared(*args))
            accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
            optimizer.step()
    close(twin, eager)
    within(fitted)
    assert accelerator.unwrap_model(prepared, keep_torch_compile=False) is twin


def test_lightning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import lightning

    class Task(lightning.LightningModule):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _index: int) -> Tensor:
            return self.model(*batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    eager, args = MLP(), (torch.randn(8, 64), torch.randn(8, 64))
    twin = copy.deepcopy(eager)
    fitted = fxmem.optimize(twin, 1.0, args, time_limit=0.3)
    pairs = list(zip(torch.randn(16, 64), torch.randn(16, 64), strict=True))
    for model in (eager, fitted):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = lightning.Trainer(
                accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False,
                enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
            )  # fmt: skip
            trainer.fit(Task(model), DataLoader(pairs, batch_size=8))
    close(twin, eager)
    within(fitted)


def test_no_backend_is_left_on_the_users_module() -> None:
    """Lightning's own `torch.compile` leaves the backend there, which no file can hold."""
    test_lightning()
    module = MLP()
    fitted = fxmem.optimize(module, None, (torch.randn(8, 64), torch.randn(8, 64)))
    assert not any(map(callable, module.__dict__.values()))
    assert "_compile_kwargs" not in module.__dict__
    close(pickle.loads(pickle.dumps(fitted)), fitted)


@pytest.mark.parametrize("wrap", ["module", "whole task"])
def test_lightning_saves_and_loads(wrap: str, tmp_path: Path) -> None:
    """A state that was saved optimised is loaded plain, and the other way round."""
    fitted = fxmem.optimize(MLP(), None)
    state = fitted.state_dict() if wrap == "module" else nn.Sequential(fitted).state_dict()
    torch.save(state, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt")
    other = fxmem.optimize(MLP(), None)
    (other if wrap == "module" else nn.Sequential(other)).load_state_dict(loaded)
    close(other, fitted)
