"""Random problems with tiers, for the tests beside it."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from fxmem.solvers.remat import RematProblem
from fxmem.solvers.transfer import Tier, TransferProblem
from tests.solvers.remat.remat_cases import random_problem

SECOND = 1_000_000_000


def tier(nanoseconds_a_byte: float, latency: int = 0, capacity: int | None = None) -> Tier:
    """The same both ways."""
    speed = max(1, round(SECOND / nanoseconds_a_byte))
    return Tier("tier", speed, speed, latency, latency, capacity)


def with_tiers(
    rng: random.Random, remat: RematProblem, most: int, count: int = 1
) -> TransferProblem:
    """Up to ``most`` movable storages, which somebody reads, and ``count`` tiers."""
    read = {s for row in remat.reads for s in row} | remat.keep
    turned = set(remat.writes[remat.turn]) if remat.turn is not None else set()
    stored = [s for s in sorted(read - turned) if remat.writer[s] >= 0 and remat.size[s]]
    movable = rng.sample(stored, min(most, len(stored)))
    tiers = tuple(
        Tier(
            f"tier{i}",
            SECOND // rng.choice([1, 2, 4]),
            SECOND // rng.choice([1, 2, 4]),
            rng.randint(0, 1),
            rng.randint(0, 1),
            rng.choice([None, None, 4]),
        )
        for i in range(count)
    )
    return TransferProblem(remat, tiers, frozenset(movable))


@st.composite
def problems(draw: st.DrawFn, most: int = 14, movable: int = 5) -> TransferProblem:
    """A strategy over `random_problem` with one or two tiers."""
    rng = random.Random(draw(st.integers(0, 1 << 30)))
    remat = random_problem(rng, draw(st.integers(1, most)), draw(st.booleans()))
    return with_tiers(rng, remat, movable, draw(st.integers(1, 2)))
