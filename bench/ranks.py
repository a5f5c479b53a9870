"""ranks: two processes that divide a model beside one with as many threads, and what their exchange costs.

    python -m bench.ranks [--models smollm2,qwen2.5-coder-1.5b] [--slots 1,8]

decode: one process with two threads, and two ranks with a thread each, in running processes that alternate. load: what
each of two ranks has of the weights, and the most memory of its own while it loads them. exchange: the sum of one
float32 row over 2, 4 and 16 ranks, in shared memory and with gloo. Times are medians. Run it on an idle machine with
two cores or more.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from bench.results import Figure, keep, table

PROMPT, STEPS, BUDGET, TURNS = 2048, 48, 512, 6
ROW, TIMES, COUNTS = 2048, 300, (2, 4, 16)  # elements of a row, sums that are timed, ranks
THREADS = 2


def main() -> None:
    args = _arguments()
    cases = [(model, slots) for model in args.models.split(",") for slots in map(int, args.slots.split(","))]
    decode = [_decode(model, slots) for model, slots in cases]
    loads = [_load(model, rank) for model in args.models.split(",") for rank in range(THREADS)]
    exchange = [_exchange(count) for count in COUNTS]
    shown = "\n\n".join((_decode_table(decode), _load_table(loads), _exchange_table(exchange)))
    workload = {"prompt_tokens": PROMPT, "budget": BUDGET, "steps": STEPS, "threads": THREADS}
    keep("ranks", workload, [*decode, *loads, *exchange], shown)


def _decode(model: str, slots: int) -> Figure:
    """Alternate between one process and two ranks."""
    processes = {"process": _Child(_serve, model, slots, 1), "ranks": _Child(_serve, model, slots, THREADS)}
    try:
        for one in processes.values():
            one.run()  # warms up
        taken: dict[str, list[list[float]]] = {name: [] for name in processes}
        for turn in range(TURNS):
            for name in processes if turn % 2 else reversed(processes):
                taken[name].append(processes[name].run())
    finally:
        for one in processes.values():
            one.close()
    found = {f"step_{name}_s": median(step for turn in turns for step in turn[1:]) for name, turns in taken.items()}
    found |= {f"prefill_{name}_s": median(turn[0] for turn in turns) for name, turns in taken.items()}
    ratios = {f"{what}_ratio": found[f"{what}_ranks_s"] / found[f"{what}_process_s"] for what in ("step", "prefill")}
    return {"part": "decode", "model": model, "slots": slots, **found, **ratios}


class _Child:
    """A process that sends numbers: once if it is ready, then for each run."""

    def __init__(self, target: Callable[..., None], *arguments: object) -> None:
        self.connection, theirs = get_context("spawn").Pipe()
        self._process = get_context("spawn").Process(target=target, args=(theirs, *arguments))
        self._process.start()
        theirs.close()
        self.pid = self._process.pid
        self.receive()  # it is ready

    def run(self) -> list[float]:
        self.connection.send_bytes(b"go")
        return self.receive()

    def receive(self) -> list[float]:
        numbers: list[float] = self.connection.recv()
        return numbers

    def close(self) -> None:
        self.connection.close()
        self._process.join(10)
        self._process.kill()


def _serve(connection: Connection, model: str, slots: int, ranks: int) -> None:
    """Decode with an engine on so many ranks, once for each run."""
    from ringkv.models.config import load_config
    from ringkv.plan.memory import available_bytes
    from ringkv.plan.options import Options
    from ringkv.plan.resolve import resolve
    from ringkv.ranks.build import build
    from ringkv.residency.locate import locate
    from ringkv.scheduler.round import run_round

    folder = locate(model)
    options = Options(
        slots=slots, prompt_tokens=PROMPT, kv_budget=BUDGET, tensor_parallel=ranks, threads=THREADS // ranks
    )
    engine = build(resolve(folder, load_config(folder), options, available_bytes()))
    connection.send([])
    try:
        while connection.recv_bytes():
            done = run_round(engine, PROMPT - 8, STEPS + 1)
            connection.send([done.prefill, *done.steps])
    except EOFError:
        pass


def _load(model: str, rank: int) -> Figure:
    """Load one of two ranks' weights, in a process of its own."""
    child = _Child(_loaded, model, rank)
    part, most = map(int, child.receive())
    child.close()
    return {
        "part": "load",
        "model": model,
        "rank": rank,
        "part_bytes": part,
        "loading_bytes": most,
        "loading_ratio": most / part,
    }


def _loaded(connection: Connection, model: str, index: int) -> None:
    """Send the bytes of a rank's weights, and the most bytes that it gained while it loaded them."""
    import torch

    from bench.resident import Peak
    from ringkv.base.progress import silent
    from ringkv.base.ranks import Rank
    from ringkv.engine.load import load
    from ringkv.kernels import native
    from ringkv.machine.compiler import find_compiler
    from ringkv.machine.paths import cache_dir
    from ringkv.models.config import load_config
    from ringkv.residency.locate import locate

    compiler, folder, rank = find_compiler(), locate(model), Rank(index, THREADS)
    assert compiler is not None, "a C++ compiler is needed"
    native.load(compiler.path, cache_dir() / "kernels")
    config = load_config(folder).of_rank(rank, "memory")
    connection.send([])
    with Peak() as peak:
        weights = load(folder, config, torch.bfloat16, torch.device("cpu"), silent, rank=rank)
    connection.send([weights.bytes, peak.bytes])


def _exchange(count: int) -> Figure:
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

    from ringkv.base.ranks import Rank
    from ringkv.kernels import native
    from ringkv.kernels.collective import all_reduce, connect_memory
    from ringkv.machine.compiler import find_compiler
    from ringkv.machine.paths import cache_dir

    torch.set_num_threads(1)
    compiler = find_compiler()
    assert compiler is not None, "a C++ compiler is needed"
    native.load(compiler.path, cache_dir() / "kernels")
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


def _decode_table(figures: Sequence[Figure]) -> str:
    head = ("model", "slots", "prefill, 1 process", "2 ranks", "ratio", "step, 1 process", "2 ranks", "ratio")
    rows = [
        (
            one["model"],
            f"{one['slots']}",
            f"{one['prefill_process_s']:.3f} s",
            f"{one['prefill_ranks_s']:.3f} s",
            f"{one['prefill_ratio']:.3f}",
            f"{one['step_process_s'] * 1e3:.2f} ms",
            f"{one['step_ranks_s'] * 1e3:.2f} ms",
            f"{one['step_ratio']:.3f}",
        )
        for one in figures
    ]
    return table(head, rows)


def _load_table(figures: Sequence[Figure]) -> str:
    rows = [
        (
            one["model"],
            f"{one['rank']}",
            f"{one['part_bytes']:,}",
            f"{one['loading_bytes']:,}",
            f"{one['loading_ratio']:.3f}",
        )
        for one in figures
    ]
    return table(("model", "rank of 2", "bytes of its weights", "most while loading", "ratio"), rows)


def _exchange_table(figures: Sequence[Figure]) -> str:
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


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="smollm2,qwen2.5-coder-1.5b")
    parser.add_argument("--slots", default="1,8")
    return parser.parse_args()


if __name__ == "__main__":
    main()
