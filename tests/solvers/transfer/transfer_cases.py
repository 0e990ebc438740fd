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
            rng.choice([0, 0, SECOND // 2, SECOND]),
            rng.choice([0, 0, SECOND // 2, SECOND]),
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


def mixed(seed: int) -> tuple[TransferProblem, int]:
    """Values that backward reads in reverse, with room for one of the large ones at a time.

    The first is large and slow to compute (to be moved), the second large and quick (to be
    computed again, from a small value), the third small and slow (to be kept).
    """
    rng = random.Random(seed)
    large, slow = rng.randint(8, 12), rng.randint(40, 60)
    remat = RematProblem(
        time=(slow, rng.randint(1, 3), slow, 0, slow, slow, slow),
        # Saved, and handed on, by each of three layers; then three gradients.
        size=(large, 1, large, 1, 2, 1, 1, 1),
        reads=((), (1,), (3,), (4,), (4,), (2, 5), (0, 6)),
        writes=((0, 1), (2, 3), (4,), (), (5,), (6,), (7,)),
        workspace=(0, 0, 0, 0, large, 0, 0),
        turn=3,
        keep=frozenset({7}),
        resident_bytes=rng.randint(0, 5),
    )
    budget = remat.resident_bytes + large + rng.randint(4, 5)
    return TransferProblem(remat, (tier(1),), frozenset({0, 2, 4})), budget


def layers(count: int, nanoseconds: int) -> RematProblem:
    """Each layer saves a large value, and hands a small one on; backward in reverse."""
    turn = count
    forward = [(0, 1)] + [(2 * i, 2 * i + 1) for i in range(1, count)]
    gradient = 2 * count
    reads: list[tuple[int, ...]] = [()] + [(2 * i - 1,) for i in range(1, count)]
    reads += [(2 * count - 1,)]
    writes = [*forward, (gradient,)]
    for i in reversed(range(count)):
        reads.append((2 * i, gradient))
        writes.append((gradient + 1,))
        gradient += 1
    return RematProblem(
        time=(*(nanoseconds for _ in range(count)), 0, *(2 * nanoseconds for _ in range(count))),
        size=(*(v for _ in range(count) for v in (1000, 100)), *(100 for _ in range(count + 1))),
        reads=tuple(reads),
        writes=tuple(writes),
        turn=turn,
        keep=frozenset({gradient}),
    )
