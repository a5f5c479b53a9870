"""sampling: what each kind of sampling costs beside greedy."""

from collections.abc import Sequence

from bench.report.machine import machine_table
from bench.report.speed import MACHINES, MODELS
from bench.results import ResultRow, figures, newest

SHOWN = ("temperature", "top-p", "top-k", "penalty", "grammar", "logprobs")


def sampling(rows: Sequence[ResultRow]) -> str:
    """Return the table of what each kind of sampling adds to a greedy step, as a share of it, by model and rows."""
    cases: dict[tuple[str, ...], dict[str, ResultRow]] = {}
    for one in newest(figures(rows, "sampling"), "model", "machine", "rows"):
        case = MODELS[one["model"]], MACHINES[one["machine"]], f"{one['rows']}"
        cases.setdefault(case, {})[one["kind"]] = one
    lines = [(*case, _step(kinds["greedy"]), *(_more(kinds, kind) for kind in SHOWN)) for case, kinds in cases.items()]
    return machine_table(("model", "machine", "rows", "greedy step", *SHOWN), lines)


def _step(greedy: ResultRow) -> str:
    return f"{1e3 * (greedy['sample_s'] + greedy['forward_s']):.1f} ms"


def _more(kinds: dict[str, ResultRow], kind: str) -> str:
    return f"{kinds[kind]['more']:+.1%}" if kind in kinds else ""
