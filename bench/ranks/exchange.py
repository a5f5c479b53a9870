"""exchange: the sum of one float32 row over several ranks, in shared memory and with gloo."""

import os
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from bench.results import Figure, table

ROW, TIMES = 2048, 300  # elements of a row, sums that are timed


def exchange(count: int) -> Figure:
    """Time sums over so many ranks."""
    from ringkv.kernels.collective import shared_memory

    descriptor = shared_memory()
    with TemporaryDirectory() as folder:
        ranks = []
        for rank in range(count):
            ours, theirs = get_context("spawn").Pipe()
            process = get_context("spawn").Process(target=_sum, args=(theirs, rank, count, folder))
            process.start()
            send_handle(ours, descriptor, process.pid)
            ranks.append((process, ours))
        answers = [connection.recv() for _, connection in ranks]
        for process, _ in ranks:
            process.join()
    os.close(descriptor)
    memory, gloo = (median(times) for times in zip(*answers, strict=True))
    return {"part": "exchange", "ranks": count, "memory_s": memory, "gloo_s": gloo, "exchange_ratio": gloo / memory}


def _sum(connection: Connection, rank: int, count: int, folder: str) -> None:
    """Send the median seconds of a sum in shared memory, and with gloo."""
    import torch
    import torch.distributed as dist

    from bench.kernels import load_kernels
    from ringkv.base.ranks import Rank
    from ringkv.kernels.collective import all_reduce, connect_memory

    torch.set_num_threads(1)
    load_kernels()
    connect_memory(recv_handle(connection), Rank(rank, count), 600.0)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    row = torch.ones(1, ROW)
    connection.send((_timed(lambda: all_reduce(row, "memory")), _timed(lambda: dist.all_reduce(row.clone()))))
    dist.destroy_process_group()


def _timed(run: Callable[[], object]) -> float:
    taken = []
    for _ in range(TIMES):
        began = perf_counter()
        run()
        taken.append(perf_counter() - began)
    return median(taken)


def exchange_table(figures: Sequence[Figure]) -> str:
    rows = [
        (
            f"{one['ranks']}",
            f"{one['memory_s'] * 1e6:.1f} us",
            f"{one['gloo_s'] * 1e6:.0f} us",
            f"{one['exchange_ratio']:.1f}",
        )
        for one in figures
    ]
    return table(("ranks", "shared memory", "gloo", "gloo/memory"), rows)
