"""short: what short prompts and few running requests cost, beside an earlier commit and passes of their own."""

from collections.abc import Sequence

from bench.report.speed import MACHINES, MODELS
from bench.results import ResultRow, figures, newest, table


def short(rows: Sequence[ResultRow]) -> str:
    """Return the table of `bench.short`."""
    found = newest(figures(rows, "short"), "model", "machine")
    lines = [(MODELS[one["model"]], MACHINES[one["machine"]], one["what"], *_measured(one)) for one in found]
    return table(("model", "machine", "what", "before", "now", "before/now", "target"), lines)


def _measured(one: ResultRow) -> tuple[str, ...]:
    before, now = (f"{1e3 * one[f'short_{side}_s']:.0f} ms" for side in ("before", "now"))
    within = f", {one['within_share']:.1%} are" if "within_share" in one else ""
    return before, now, f"{one['short_ratio']:.2f}", f"{one.get('target', '')}{within}"
