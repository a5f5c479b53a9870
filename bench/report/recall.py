"""recall: whole decode steps that read some pages of all entries."""

from collections.abc import Sequence

from bench.report.machine import machine_table
from bench.report.speed import MACHINES, MODELS
from bench.results import ResultRow, figures, newest
from ringkv.base.kv import PAGES


def recall(rows: Sequence[ResultRow]) -> str:
    """Return the table of steps by policy, from the newest run of each model and size of pages."""
    runs = newest([{"page": PAGES[0]} | one for one in figures(rows, "recall")], "model", "page")
    lines = [
        (
            MODELS[one["model"]],
            MACHINES[one["machine"]],
            _policy(one),
            f"{one['live']:,}" if one["tier"] == "memory" else f"{one['live']:,} in {one['tier']}",
            f"{one['slots_bytes'] / 1e6:,.0f}",
            f"{1e3 * one['seconds']:.1f} ms",
            f"{one['over_kept']:.2f}x",
        )
        for one in sorted(runs, key=lambda one: ([*MODELS].index(one["model"]), -one["page"]))
        if one["page"] == PAGES[0] or one["policy"] == "arkvale"
    ]
    head = ("model", "machine", "policy", "entries", "slots in memory, MB", "step", "over `snapstream`")
    return machine_table(head, lines)


def _policy(one: ResultRow) -> str:
    pages = f"pages of {one['page']}" if one["page"] != PAGES[0] else ""
    estimated = "estimating" if one.get("unread") == "estimate" else ""
    return ", ".join(filter(None, (one["policy"], pages, estimated)))
