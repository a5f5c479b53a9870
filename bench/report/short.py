"""short: what short prompts and few running requests cost, beside an earlier commit and passes of their own."""

from collections.abc import Sequence

from bench.report.speed import MACHINES, MODELS
from bench.results import ResultRow, figures, newest, table


def short(rows: Sequence[ResultRow]) -> str:
    """Return the table of `bench.short`."""
    lines = [
        (MODELS[one["model"]], MACHINES[one["machine"]], one["what"], _shown(one, "before"), _shown(one, "now"))
        + (f"{one['short_ratio']:.2f}", _target(one))
        for one in newest(figures(rows, "short"), "model", "machine")
    ]
    return table(("model", "machine", "what", "before", "now", "before/now", "target"), lines)


def _shown(one: ResultRow, side: str) -> str:
    return f"{1e3 * one[f'short_{side}_s']:.0f} ms"


def _target(one: ResultRow) -> str:
    within = f", {one['within_share']:.1%} are" if "within_share" in one else ""
    return f"{one['target']}{within}"
