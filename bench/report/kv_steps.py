"""kv_steps: whole decode steps by format of slots, and batches in equal cache bytes."""

from collections.abc import Sequence

from bench.report.machine import machine_table
from bench.report.speed import MACHINES, MODELS
from bench.results import ResultRow, figures, newest

SHOWN = ("plain", "int8", "fp8", "int4")  # the others are for study


def kv_steps(rows: Sequence[ResultRow]) -> str:
    """Return the table of steps, from the newest run of each model, machine and part, with formats to serve in."""
    lines = [
        (
            MODELS[one["model"]],
            MACHINES[one["machine"]],
            one["format"],
            f"{one['slots']} x {one['live']:,}",
            f"{one['slots_bytes'] / 1e6:,.0f}",
            f"{one['slots'] / one['seconds']:.0f}",
            f"{one['step_bytes'] / one['seconds'] / 1e9:.1f}",
            f"{one['share']:.0%}",
        )
        for one in newest(figures(rows, "kv_steps"), "model", "machine", "part")
        if one["format"] in SHOWN
    ]
    head = ("model", "machine", "`--kv-format`", "slots x entries", "cache, MB", "tokens/s", "GB/s", "of plain")
    return machine_table(head, lines)
