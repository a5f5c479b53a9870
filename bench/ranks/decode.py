"""decode: one process with two threads beside two ranks with a thread each, in running processes that alternate."""

from collections.abc import Sequence
from multiprocessing.connection import Connection
from statistics import median
from typing import TYPE_CHECKING

from bench.ranks.child import THREADS, Child
from bench.results import Figure, table

if TYPE_CHECKING:
    from ringkv.base.engine import Engine

PROMPT, STEPS, BUDGET = 2048, 48, 512


def decode(model: str, slots: int, turns: int) -> Figure:
    """Alternate between one process and two ranks."""
    processes = {"process": Child(_serve, model, slots, 1), "ranks": Child(_serve, model, slots, THREADS)}
    try:
        for one in processes.values():
            one.run()  # warms up
        taken: dict[str, list[list[float]]] = {name: [] for name in processes}
        for turn in range(turns):
            for name in processes if turn % 2 else reversed(processes):
                taken[name].append(processes[name].run())
    finally:
        for one in processes.values():
            one.close()
    found = {f"step_{name}_s": median(step for run in runs for step in run[1:]) for name, runs in taken.items()}
    found |= {f"prefill_{name}_s": median(run[0] for run in runs) for name, runs in taken.items()}
    ratios = {f"{what}_ratio": found[f"{what}_ranks_s"] / found[f"{what}_process_s"] for what in ("step", "prefill")}
    return {"part": "decode", "model": model, "slots": slots, **found, **ratios}


def _serve(connection: Connection, model: str, slots: int, ranks: int) -> None:
    """Decode with an engine on so many ranks, once for each run."""
    from ringkv.scheduler.round import run_round

    engine = open_engine(model, slots, ranks)
    connection.send([])
    try:
        while connection.recv_bytes():
            done = run_round(engine, PROMPT - 8, STEPS + 1)
            connection.send([done.prefill, *done.steps])
    except EOFError:
        pass


def open_engine(model: str, slots: int, ranks: int) -> "Engine":
    """Build an engine on so many ranks, which divide the threads."""
    from ringkv.models.config import load_config
    from ringkv.plan.memory import available_bytes
    from ringkv.plan.options import Options
    from ringkv.plan.resolve import resolve
    from ringkv.ranks.build import build
    from ringkv.residency.locate import locate

    folder = locate(model)
    options = Options(
        slots=slots, prompt_tokens=PROMPT, kv_budget=BUDGET, tensor_parallel=ranks, threads=THREADS // ranks
    )
    return build(resolve(folder, load_config(folder), options, available_bytes()))


def decode_table(figures: Sequence[Figure]) -> str:
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
