"""Run test functions in processes of their own, over gloo."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run_on(ranks: int, work: Callable[..., None], *arguments: object) -> None:
    """Run ``work(rank, *arguments)`` in ``ranks`` processes; an error in any is raised here."""
    _choose_port()
    mp.spawn(work, arguments, nprocs=ranks, join=True)


def exit_codes(ranks: int, work: Callable[..., None], *arguments: object) -> list[int | None]:
    """The same without ending the others when one fails; None for one that did not end."""
    _choose_port()
    context = mp.get_context("spawn")
    processes = [context.Process(target=work, args=(r, *arguments)) for r in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes


def _choose_port() -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))


def join_group(rank: int, ranks: int, seconds: float = 120) -> None:
    """Become one of ``ranks`` processes; waits for the others at most ``seconds``."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks, timeout=timedelta(seconds=seconds))
