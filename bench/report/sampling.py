"""sampling: what each kind of sampling costs beside greedy."""

from collections.abc import Sequence

from bench.results import ResultRow, figures, newest

TARGETED = ("temperature", "top-p", "top-k")


def added(rows: Sequence[ResultRow], machine: str) -> list[float]:
    """Return the share of a greedy step that temperature, top-p and top-k add, for all models and rows."""
    found = newest(figures(rows, "sampling", machine=machine), "model", "rows")
    return [one["more"] for one in found if one["kind"] in TARGETED]
