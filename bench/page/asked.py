"""What the studies were to tell, asked before they ran, and what their answers say by now."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench.page.together import Together, differences, together
from bench.report import table
from bench.studies import FULL, PAPERS, SNAPKV, layouts
from ringkv.base.kv import KVChoice
from ringkv.evaluation.bootstrap import Interval, mean_of, share_of
from ringkv.evaluation.cells import Cell
from ringkv.evaluation.report.page import difference
from ringkv.evaluation.summary import points

NEAR = -3.0  # percent of the full cache's mean
HALF = 50.0  # percent of what SnapKV loses
RETRIEVAL = "niah"
NOT_YET = "not answered yet"


class Asked(NamedTuple):
    """What was hoped for, what was found with its 95% interval, and whether that is so."""

    claim: str
    found: str
    verdict: str


def asked_table(folder: Path) -> str:
    """folder: holds one for each study."""
    return table(("asked", "found", ""), list(asked(folder)))


def asked(folder: Path) -> Iterator[Asked]:
    longbench, ruler, gsm8k = (folder / name for name in ("longbench-qwen", "ruler-qwen", "layouts-qwen"))
    usual, papers, streaming = (Cell(one, "4x") for one in (KVChoice(), PAPERS, KVChoice(policy="streaming")))
    found = _scores(longbench, usual, FULL)
    yield _near("a quarter of each prompt: `snapstream` is within 3% of the full cache on LongBench's mean", found)
    found = _scores(ruler, usual, streaming)
    yield _above("a quarter: it finds more than `streaming` on each of RULER's needle tasks", found)
    cells = Cell(KVChoice(select="keydiff"), "2x"), Cell(SNAPKV, "2x"), FULL
    found = _scores(ruler, *cells, place="after")
    yield _recovered("half, the question later: KeyDiff wins back half of what SnapKV loses on RULER", found)
    for name, study in (("RULER", ruler), ("LongBench", longbench)):
        found = _scores(study, usual, papers)
        yield _no_worse(f"a quarter: our settings score no less than the papers' on {name}", found)
    for budget in dict.fromkeys(cell.budget for cell in layouts() if cell.budget):
        found = _scores(gsm8k, Cell(KVChoice(), budget), Cell(KVChoice(elastic=False), budget))
        yield _no_worse(f"{budget} entries: the elastic layout solves no less of GSM8K than the paper's", found)


def _scores(study: Path, *cells: Cell, place: str = "inside") -> Together:
    return together(study, [cell.label for cell in cells], place)


def _near(claim: str, found: Together) -> Asked:
    lost = share_of([[(ours - full, full) for ours, full in task] for task in found.values()])
    return _said(claim, lost, "%", lambda one: one.mean >= NEAR)


def _above(claim: str, found: Together) -> Asked:
    """Each task by itself; met where every interval is above zero."""
    tasks = {task: scores for task, scores in found.items() if task.startswith(RETRIEVAL)}
    won = {task: one.through(points) for task, scores in tasks.items() if (one := mean_of([differences(scores)]))}
    if not won:
        return Asked(claim, NOT_YET, "")
    sure = [task for task, one in won.items() if one.low > 0]
    unsure = "; ".join(f"{task} {difference(one)}" for task, one in won.items() if task not in sure)
    words = f"surely on {len(sure)} of {len(won)}" + f"; not on {unsure}" * bool(unsure)
    return Asked(claim, words, _verdict(len(sure) == len(won)))


def _recovered(claim: str, found: Together) -> Asked:
    share = share_of([[(best - snapkv, full - snapkv) for best, snapkv, full in task] for task in found.values()])
    return _said(claim, share, "%", lambda one: one.mean >= HALF)


def _no_worse(claim: str, found: Together) -> Asked:
    """Missed where all of the interval is below zero."""
    won = mean_of([differences(task) for task in found.values()])
    return _said(claim, won, " points", lambda one: one.high >= 0)


def _said(claim: str, found: Interval | None, unit: str, is_met: Callable[[Interval], bool]) -> Asked:
    if found is None:
        return Asked(claim, NOT_YET, "")
    shown = found.through(points)
    return Asked(claim, difference(shown, unit), _verdict(is_met(shown)))


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "**missed**"
