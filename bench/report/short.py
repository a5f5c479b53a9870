"""short: what short prompts and few running requests cost, beside an earlier commit and passes of their own."""

from collections.abc import Sequence

from bench.results import ResultRow, figures, newest, table


def short(rows: Sequence[ResultRow]) -> str:
    """Return the table of `bench.short`."""
    found = newest(figures(rows, "short", model="smollm2", machine="amd-avx512_bf16"), "model")
    return table(("what", "before", "now", "ratio", "target"), [(one["what"], *_measured(one)) for one in found])


def _measured(one: ResultRow) -> tuple[str, ...]:
    before, now = (f"{1e3 * one[f'short_{side}_s']:.0f} ms" for side in ("before", "now"))
    within = f", {one['within_share']:.1%} are" if "within_share" in one else ""
    return before, now, f"{one['short_ratio']:.2f}", f"{one.get('target', '')}{within}"
