"""waits: the share of its time in which the first of two ranks exchanges results, by torch's profiler.

It includes the time in which it waits for the other rank.
"""

from collections.abc import Sequence
from multiprocessing.connection import Connection

from bench.ranks.child import THREADS, Child
from bench.ranks.decode import PROMPT, STEPS, open_engine
from bench.results import Figure, table

PHASES = ("prefill", "decode")


def waits(model: str, slots: int) -> Figure:
    child = Child(_profile, model, slots)
    shares = child.run()
    child.close()
    return {"part": "waits", "model": model, "slots": slots} | {
        f"{phase}_exchange_share": share for phase, share in zip(PHASES, shares, strict=True)
    }


def _profile(connection: Connection, model: str, slots: int) -> None:
    """Send the exchange's share of prefill, and of decode."""
    from torch.profiler import ProfilerActivity, profile

    from ringkv.bench.pair import Workload
    from ringkv.bench.profile import DECODE, PREFILL, phases, run_phases

    engine = open_engine(model, slots, THREADS)
    connection.send([])
    connection.recv_bytes()
    workload = Workload(PROMPT - 8, STEPS + 1)
    run_phases(engine, workload)  # warms up
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run_phases(engine, workload)
    found = {phase.name: phase for phase in phases(profiler.events() or (), on_device=False)}
    connection.send(
        [sum(one.share for one in found[name].operators if "_memory" in one.name) for name in (PREFILL, DECODE)]
    )


def waits_table(figures: Sequence[Figure]) -> str:
    rows = [
        (one["model"], f"{one['slots']}", *(f"{one[f'{phase}_exchange_share']:.1%}" for phase in PHASES))
        for one in figures
    ]
    return table(("model", "slots", "exchange of prefill", "of decode"), rows)
