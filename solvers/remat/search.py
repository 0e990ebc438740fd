"""Annealing on several threads, in rounds that grow, from the best schedule known.

Rounds are counted, not timed, so equal seeds give equal answers unless time runs out.
"""

from __future__ import annotations

import time as clock
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np

from .anneal import BEST_TIME
from .kick import MOVES, candidates, kicks
from .state import OVER
from .worker import CHUNK, Incumbent, Worker

# First temperatures of rounds, in mean durations of an operator. A round from a far one forgets
# most of the schedule that it begins with, a round from a near one improves it.
FAR, FAR_COOLING = (3.0, 8.0), 100.0
NEAR, NEAR_COOLING = (0.3, 0.03, 1.0, 0.1), 30.0
NEAR_ROUNDS = 100_000  # moves of the first round on each thread; later ones take more
FAR_SPEED = 30_000  # the same where the gap is wide, for each second of the time limit
_WIDE = 0.005  # a gap to the bound that is worth looking far and kicking
# Where an answer close to the bound will do, seconds that are spent in any case.
_ENOUGH_SECONDS = 2.0


def search(
    incumbent: Incumbent,
    starts: list[np.ndarray],
    price: float,
    deadline: float,
    seed: int,
    fixed: bool,
    seconds: float,
    gap: float = 0.0,
    threads: int = 2,
) -> None:
    """Shorten the incumbent's time within its budget until the deadline.

    Close to the bound all threads look near. Else every other one kicks, unless that
    found less in the round before, and the rest look far.

    Parameters
    ----------
    incumbent : Incumbent
        Updated in place, also if the search is interrupted.
    starts : list of sequences
        Where the threads begin, best first.
    price : float
        A guess of what a byte is worth in time.
    deadline : float
        By `time.monotonic`.
    fixed : bool
        First runs keep the given order.
    seconds : float
        Time limit that sets the length of the first rounds.
    gap : float
        If positive, stop once this close to the bound, or when rounds find nothing more.
    """
    a = incumbent.a
    mean = max(1.0, float(a.op["time"].sum()) / max(1, len(a.op)))
    price = max(price, 0.1 * float(a.op["time"].sum()) / max(1.0, float(a.storage["size"].sum())))
    capacity = 4 * len(a.op) + 64
    workers = [
        Worker(a, capacity, 0.3 * price, seed * 7919 + 104729 * i + 1, fixed)
        for i in range(threads)
    ]
    random = np.random.default_rng(seed)
    with ThreadPoolExecutor(threads) as pool:
        heads = _scout(pool, workers, incumbent, starts, mean, price, deadline)
        for i, worker in enumerate(workers):
            worker.start(heads[min(i, len(heads) - 1)], incumbent.budget)
        rounds, stale, turn, speed, pays = NEAR_ROUNDS, 0, 0, 0.0, True
        if incumbent.room > _WIDE:
            rounds = max(rounds, int(FAR_SPEED * seconds))
        enough = clock.monotonic() + _ENOUGH_SECONDS
        while incumbent.time > max(incumbent.bound, incumbent.proved):
            now, before = clock.monotonic(), incumbent.time
            left = int((deadline - now) * speed)
            if now >= deadline or (speed and left < CHUNK // 10):
                return
            if speed and rounds > 0.6 * left:
                rounds = left  # the last round: neither cut short while hot nor too early
            wide = incumbent.room > _WIDE
            jobs, kicked = [], []
            for i, worker in enumerate(workers):
                if wide and pays and i % 2 and incumbent.sequence is not None:
                    each = max(1, rounds // (MOVES * len(a.op)))
                    operators = candidates(a, incumbent.sequence, random, each)
                    what = (incumbent.sequence, operators, incumbent.budget, mean, deadline)
                    kicked.append(pool.submit(kicks, worker, *what))
                else:
                    hot, cooling = _temperature(wide, turn, i)
                    heat = (hot * mean, hot * mean / cooling)
                    jobs.append(pool.submit(worker.run, rounds, *heat, 1.0, False, deadline))
            finish([*jobs, *kicked], workers, incumbent)
            far = incumbent.time
            for kick in kicked:
                found = kick.result()
                if found is not None:
                    incumbent.offer(found)
            pays = not kicked or incumbent.time < far
            speed = 0.95 * rounds / (clock.monotonic() - now)
            if incumbent.sequence is not None:
                stale = stale + 1 if incumbent.time > before * 0.9998 else 0
                room = incumbent.room
                if gap and (
                    (room < gap and (stale > 1 or clock.monotonic() > enough))
                    or stale >= 2 + min(8, 400 * room)
                ):
                    return
                for worker in workers:
                    own = worker.found()
                    # The far-looking thread goes on from its own schedule if that is close.
                    if own is None or turn % 2 or worker.record[BEST_TIME] > 1.01 * incumbent.time:
                        own = incumbent.sequence
                    worker.start(own, incumbent.budget)
            rounds = rounds * 4 if wide else rounds * 3 // 2
            turn += 1


def _temperature(wide: bool, turn: int, thread: int) -> tuple[float, float]:
    """First temperature and cooling of a round."""
    if wide:
        return FAR[(turn + thread) % len(FAR)], FAR_COOLING
    return NEAR[(turn + thread) % len(NEAR)], NEAR_COOLING


def finish(jobs: list[Future], workers: list[Worker], incumbent: Incumbent) -> None:
    """Let all jobs end and offer what they found, also when interrupted."""
    try:
        for job in jobs:
            job.result()
    except KeyboardInterrupt:
        for worker in workers:
            worker.halt = True
        wait(jobs)
        raise
    finally:
        for worker in workers:
            found = worker.found()
            incumbent.offer(worker.current())
            if found is not None:
                incumbent.offer(found)


def _scout(
    pool: ThreadPoolExecutor,
    workers: list[Worker],
    incumbent: Incumbent,
    starts: list[np.ndarray],
    mean: float,
    price: float,
    deadline: float,
    most: int = 8,
    rounds: int = 40_000,
) -> list[np.ndarray]:
    """Search briefly from each start; the ends, best first."""
    ends = []
    for first in range(0, min(most, len(starts)), len(workers)):
        jobs = []
        busy = []
        for worker, start in zip(workers, starts[first : first + len(workers)], strict=False):
            worker.start(start, incumbent.budget)
            worker.weight = price
            busy.append(worker)
            jobs.append(
                pool.submit(worker.run, rounds, 0.1 * mean, 0.003 * mean, 1.0, False, deadline)
            )
        finish(jobs, busy, incumbent)
        for worker in busy:
            found = worker.found()
            if found is None:
                over = max(1, int(worker.state.meta[OVER]))
                ends.append((over, 0, worker.current()))
            else:
                ends.append((0, int(worker.record[BEST_TIME]), found))
    return [sequence for _, _, sequence in sorted(ends, key=lambda end: end[:2])]
