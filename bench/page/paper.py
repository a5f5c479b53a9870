"""The paper's own comparison: what SnapStream's choice adds to StreamingLLM's sinks and ring, task by task."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from bench.page.together import Scores, differences, together
from bench.report import table
from ringkv.evaluation.bootstrap import mean_of
from ringkv.evaluation.report.page import difference
from ringkv.evaluation.summary import points
from ringkv.evaluation.tasks.catalogue import TASKS

# study -> the budget at which both are compared
BUDGETS: Mapping[str, str] = {
    "ruler-qwen": "4x",
    "longbench-qwen": "4x",
    "documents-qwen": "4x",
    "writing-qwen": "256",
}
HEAD = ("task", "budget", "prompts", "full", "streaming", "snapstream", "snapstream over streaming")


def paper_table(folder: Path) -> str:
    """folder: holds one for each study."""
    return table(HEAD, list(_rows(folder)))


def _rows(folder: Path) -> Iterator[Sequence[str]]:
    for study, budget in BUDGETS.items():
        found = together(folder / study, (f"snapstream {budget}", f"streaming {budget}", "full"))
        yield from (_row(task, budget, found[task]) for task in TASKS if found.get(task))


def _row(task: str, budget: str, scores: Scores) -> Sequence[str]:
    ours, streaming, full = (f"{100 * fmean(one):.1f}" for one in zip(*scores, strict=True))
    won = mean_of([differences(scores)])
    return task, budget, str(len(scores)), full, streaming, ours, difference(won.through(points) if won else None)
