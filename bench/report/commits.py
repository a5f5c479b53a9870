"""commits: the speed of a commit beside an earlier one."""

from collections.abc import Sequence

from bench.report.speed import MACHINES, MODELS
from bench.results import ResultRow, figures, newest, table


def beside(rows: Sequence[ResultRow]) -> str:
    """Return the table of prefill and step times, now over before, of the newest run of each model and slot count."""
    found = newest(figures(rows, "beside"), "model", "machine", "slots")
    order = list(MODELS)
    lines = [
        (
            MODELS[one["model"]],
            MACHINES[one["machine"]],
            f"{one['slots']}",
            f"{one['before']}, {one['commit']}",
            f"{one['prefill_before_s']:.2f} s, {one['prefill_now_s']:.2f} s",
            f"{one['prefill_ratio']:.3f}",
            f"{1e3 * one['step_before_s']:.1f} ms, {1e3 * one['step_now_s']:.1f} ms",
            f"{one['step_ratio']:.3f}",
        )
        for one in sorted(found, key=lambda one: (order.index(one["model"]), one["machine"], one["slots"]))
    ]
    head = ("model", "machine", "slots", "commits", "prefill", "now/before", "step", "now/before")
    return table(head, lines)
