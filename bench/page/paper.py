"""The paper's own comparison: what SnapStream's choice adds to StreamingLLM's sinks and ring, task by task."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from bench.page.together import Scores, differences, together
from bench.report import table
from bench.studies import FULL, OURS, WIDE
from ringkv.base.kv import KVChoice
from ringkv.evaluation.bootstrap import mean_of
from ringkv.evaluation.cells import Cell
from ringkv.evaluation.report.page import difference
from ringkv.evaluation.summary import points
from ringkv.evaluation.tasks.catalogue import TASKS

# study -> what is compared with `streaming` of the same budget
CHOSEN: Mapping[str, Cell] = {
    "ruler-qwen": Cell(WIDE, "4x"),
    "longbench-qwen": Cell(WIDE, "4x"),
    "documents-qwen": Cell(WIDE, "4x"),
    "writing-qwen": Cell(OURS, "256"),
}
HEAD = ("task", "budget", "prompts", "full", "streaming", "snapstream", "snapstream over streaming")


def paper_table(folder: Path) -> str:
    """folder: holds one for each study."""
    return table(HEAD, list(_rows(folder)))


def _rows(folder: Path) -> Iterator[Sequence[str]]:
    for study, ours in CHOSEN.items():
        streaming = Cell(KVChoice(policy="streaming"), ours.budget)
        found = together(folder / study, [cell.label for cell in (ours, streaming, FULL)])
        yield from (_row(task, str(ours.budget), found[task]) for task in TASKS if found.get(task))


def _row(task: str, budget: str, scores: Scores) -> Sequence[str]:
    ours, streaming, full = (f"{100 * fmean(one):.1f}" for one in zip(*scores, strict=True))
    won = mean_of([differences(scores)])
    return task, budget, str(len(scores)), full, streaming, ours, difference(won.through(points) if won else None)
