"""One fuzzed program under a budget: against the same without one, and against eager."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import fxmem
from fxmem.allocator import record
from fxmem.measure import loss_of
from fxmem.residents import count_residents
from tests.cases import Case
from tests.fuzz.programs import Program
from tests.steps import Step, differences, run

# Of the norm of what eager gives: sums in another order, in the lowest precision at work.
CLOSE = {"torch.float64": 1e-9, "torch.float32": 1e-4, "torch.bfloat16": 0.05}


class Refused(Exception):
    """Eager itself cannot train the program, or its numbers are none, or torch captures others.

    The last: ``aot_eager``, torch's capture without any planning, gives what fxmem gives and eager
    does not (2.13: ``lerp_`` on a float64 scalar; in-place dropout on a transposed value).
    """


def judge(program: Program, time_limit: float = 0.2) -> None:
    """Train two steps three ways and compare.

    Raises
    ------
    AssertionError
        Something differs, or takes more than its budget.
    Refused
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager = _eager(program)
        torch._dynamo.reset()
        case = program.case()
        free = fxmem.optimize(case.module, None, case.args)
        without = run(free, case.module, case)
        differing = far(without, eager, program)
        if differing and set(differing).isdisjoint(differences(without, _captured(program))):
            raise Refused(f"torch's own capture differs from eager in {differing}")
        assert differing == []
        base = free.report().rows[0][0]
        _judge_budget(program, base.resident_bytes, base.peak_bytes, without, time_limit)


def _eager(program: Program) -> list[Step]:
    case = program.case()
    try:
        steps = run(case.module, case.module, case)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise Refused(str(error)) from error
    values = [v for step in steps for v in step.values() if v is not None]
    if not all(v.isfinite().all() for v in values):
        raise Refused("not finite")
    return steps


def _captured(program: Program) -> list[Step]:
    torch._dynamo.reset()
    case = program.case()
    return run(torch.compile(case.module, backend="aot_eager"), case.module, case)


def _judge_budget(
    program: Program, residents: int, peak: int, wanted: list[Step], time_limit: float
) -> None:
    budget = max(1, residents + round((peak - residents) * program.share))
    torch._dynamo.reset()
    case = program.case()
    try:
        fitted = fxmem.optimize(case.module, budget, case.args, time_limit=time_limit)
    except fxmem.InfeasibleBudget as error:
        assert error.minimum_bytes is not None and error.minimum_bytes > budget
        torch._dynamo.reset()
        case, budget = program.case(), error.minimum_bytes
        fitted = fxmem.optimize(case.module, budget, case.args, time_limit=time_limit)
    try:
        found = run(fitted, case.module, case)
    except fxmem.InfeasibleBudget as error:  # of a second plan, for what came after the first
        assert error.minimum_bytes is not None and error.minimum_bytes > budget
        return
    assert differences(found, wanted) == []
    assert far(found, wanted, program) == []
    plan, proved = fitted.report().rows[-1]
    assert plan.peak_bytes <= budget
    assert proved is not None and proved <= budget, "proved peak"
    taken = step_peak(fitted, case)
    assert taken <= budget, f"a step took {taken} of {budget}"


def step_peak(fitted: torch.nn.Module, case: Case) -> int:
    """Peak bytes of one real step, residents included, where its loss is its only result."""
    given = [v for v in tree_leaves(case.args) if isinstance(v, Tensor)]
    for tensor in (*case.module.parameters(), *given):
        tensor.grad = None
    if len(tree_leaves(fitted(*case.args))) > 1:
        return 0
    residents = count_residents(case.module, case.args).total
    return residents + record(lambda: loss_of(fitted(*case.args)).backward()).peak


def far(found: Sequence[Step], wanted: Sequence[Step], program: Program) -> list[str]:
    """Names of what is not close."""
    limit = CLOSE["torch.bfloat16" if program.autocast else program.dtype]
    names = []
    for number, (new, old) in enumerate(zip(found, wanted, strict=True)):
        assert new.keys() == old.keys()
        names += [f"{n} of step {number}" for n in new if not _close(new[n], old[n], limit)]
    return names


def _close(new: Tensor | None, old: Tensor | None, limit: float) -> bool:
    if new is None or old is None:
        return new is None and old is None
    if new.dtype != old.dtype or new.shape != old.shape:
        return False
    if not new.is_floating_point():
        return torch.equal(new, old)
    error = (new.double() - old.double()).norm()
    return bool(error <= limit * old.double().norm() + limit * 1e-3)
