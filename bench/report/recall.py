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
        if (one["page"] == PAGES[0] or one["policy"] == "arkvale") and not one.get("prefetch")
    ]
    head = ("model", "machine", "policy", "entries", "slots in memory, MB", "step", "over `snapstream`")
    return machine_table(head, lines)


def _policy(one: ResultRow) -> str:
    pages = f"pages of {one['page']}" if one["page"] != PAGES[0] else ""
    estimated = "estimating" if one.get("unread") == "estimate" else ""
    return ", ".join(filter(None, (one["policy"], pages, estimated)))


def prefetch(rows: Sequence[ResultRow]) -> str:
    """Return the table of steps that prefetch from files, beside those that do not, from the newest runs."""
    runs = newest([one for one in figures(rows, "recall") if one.get("prefetch") is not None], "model")
    steps = {(one["model"], one["tier"], one["prefetch"]): one for one in runs if one["tier"] != "memory"}
    lines = [
        (
            MODELS[model],
            MACHINES[one["machine"]],
            f"{one['live']:,} in {tier}",
            f"{1e3 * steps[model, tier, False]['seconds']:.1f} ms",
            f"{1e3 * one['seconds']:.1f} ms",
            f"{one['seconds'] / steps[model, tier, False]['seconds']:.2f}x",
            f"{one['hits']:.0%}" if one["hits"] else "",
        )
        for (model, tier, is_on), one in sorted(steps.items(), key=lambda item: [*MODELS].index(item[0][0]))
        if is_on
    ]
    return machine_table(("model", "machine", "entries", "step", "prefetching", "ratio", "hits"), lines)
