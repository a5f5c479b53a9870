"""What the studies are to tell, and what their answers say by now."""

from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from bench.page.together import Together, differences, together
from bench.report import table
from bench.studies import FOUND_EASILY, FOUND_HARDLY, FULL, KEYDIFF, KVPRESS, OURS, SNAPKV, WIDE, layouts
from ringkv.base.kv import KVChoice
from ringkv.evaluation.bootstrap import Interval, mean_of, share_of
from ringkv.evaluation.cells import Cell
from ringkv.evaluation.report.page import difference
from ringkv.evaluation.summary import points

NEAR = -3.0  # percent of the full cache's mean
HALF = 50.0  # percent of what is lost
RETRIEVAL = "niah"
CHOSE = (*FOUND_EASILY, *FOUND_HARDLY)  # the tasks by which our settings were chosen
BEFORE = "with a window of 64"
NOT_YET, TOO_FEW, NOISE = "not answered yet", "too few prompts yet", "not told apart"


class Asked(NamedTuple):
    """What was hoped for, what was found with its 95% interval, and whether that is so."""

    claim: str
    found: str
    verdict: str


def asked_table(folder: Path) -> str:
    """folder: holds one for each study."""
    return table(("asked", "found", ""), list(asked(folder)))


def asked(folder: Path) -> Iterator[Asked]:
    yield from _longbench(folder)
    yield from _ruler(folder)
    yield from _windows(folder)
    for budget in dict.fromkeys(cell.budget for cell in layouts() if cell.budget):
        found = _scores(folder / "layouts-qwen", Cell(KVChoice(), budget), Cell(KVChoice(elastic=False), budget))
        yield _no_worse(f"{budget} entries: the elastic layout solves no less of GSM8K than the paper's", found)


def _longbench(folder: Path) -> Iterator[Asked]:
    """Our default beside the full cache where other settings of ours were asked, too; else as it was at first."""
    first, later = folder / "longbench-qwen", folder / "choosing-longbench-qwen"
    found = _scores(later, Cell(OURS, "4x"), FULL)
    yield _near("a quarter of each prompt: `snapstream` is within 3% of the full cache on LongBench's mean", found)
    yield _near("the same without `lcc`, which is better with less", _without(found, ("lcc",)))
    found = _scores(first, Cell(WIDE, "4x"), FULL)
    yield _near(f"the same {BEFORE}", found)
    yield _near("and without `lcc`", _without(found, ("lcc",)))
    found = _scores(first, Cell(WIDE, "4x"), Cell(KVPRESS, "4x"))
    yield _no_worse(f"a quarter: our settings {BEFORE} score no less than kvpress's on LongBench", found)


def _ruler(folder: Path) -> Iterator[Asked]:
    """Our default on prompts by which nothing was chosen; else what was the default when RULER was asked."""
    first, later = folder / "ruler-qwen", folder / "default-qwen"
    ours, wide, kvpress = (Cell(choice, "4x") for choice in (OURS, WIDE, KVPRESS))
    streaming, keydiff = Cell(KVChoice(policy="streaming"), "4x"), Cell(KEYDIFF, "2x")
    more = "a quarter: it finds more than `streaming` on each of RULER's needle tasks"
    yield _above(more, _scores(later, ours, streaming))
    yield _no_worse("of those tasks it finds no less than kvpress's settings", _scores(later, ours, kvpress))
    yield _no_worse("and no less than the full cache", _scores(later, ours, FULL))
    yield _above(f"{more} {BEFORE}", _scores(first, wide, streaming))
    for name, choice in (("SnapKV with kvpress's settings", SNAPKV), (f"ours {BEFORE}", WIDE)):
        found = _scores(first, keydiff, Cell(choice, "2x"), FULL, place="after")
        yield _recovered(f"half, the question later: KeyDiff wins back half of what {name} loses on RULER", found)
    found = _scores(first, wide, kvpress)
    yield _no_worse(f"a quarter: our settings {BEFORE} score no less than kvpress's on RULER", found)
    yield _no_worse("the same on those of its tasks by which they were not chosen", _without(found, CHOSE))


def _windows(folder: Path) -> Iterator[Asked]:
    """Half as many queries that vote as before."""
    longbench, ruler = folder / "choosing-longbench-qwen", folder / "choosing-window-qwen"
    for study, budget, claim in (
        (longbench, "4x", "a quarter: a window of 32 scores no less than one of 64 on LongBench"),
        (ruler, "4x", "the same on RULER's prompts of another seed"),
        (ruler, "8x", "the same at an eighth"),
    ):
        yield _no_worse(claim, _scores(study, Cell(OURS, budget), Cell(WIDE, budget)))


def _scores(study: Path, *cells: Cell, place: str = "inside") -> Together:
    return together(study, [cell.label for cell in cells], place)


def _without(found: Together, tasks: Sequence[str]) -> Together:
    return {task: scores for task, scores in found.items() if task not in tasks}


def _near(claim: str, found: Together) -> Asked:
    """Judged by the mean."""
    lost = share_of([[(ours - full, full) for ours, full in task] for task in found.values()])
    return _said(claim, lost, "%", lambda one: _verdict(one.mean >= NEAR))


def _above(claim: str, found: Together) -> Asked:
    """Each task by itself; met where every interval is above zero."""
    tasks = {task: scores for task, scores in found.items() if task.startswith(RETRIEVAL)}
    won = {task: one.through(points) for task, scores in tasks.items() if (one := mean_of([differences(scores)]))}
    if not won:
        return Asked(claim, NOT_YET, "")
    if few := [task for task, one in won.items() if not isfinite(one.low)]:
        return Asked(claim, f"no interval on {len(few)} of {len(won)} tasks", TOO_FEW)
    sure = [task for task, one in won.items() if one.low > 0]
    unsure = "; ".join(f"{task} {difference(one)}" for task, one in won.items() if task not in sure)
    words = f"surely on {len(sure)} of {len(won)}" + f"; not on {unsure}" * bool(unsure)
    return Asked(claim, words, _verdict(len(sure) == len(won)))


def _recovered(claim: str, found: Together) -> Asked:
    """Judged by the mean."""
    share = share_of([[(best - lossy, full - lossy) for best, lossy, full in task] for task in found.values()])
    return _said(claim, share, "%", lambda one: _verdict(one.mean >= HALF))


def _no_worse(claim: str, found: Together) -> Asked:
    """Missed where all of the interval is below zero; a lower mean with an interval that holds zero tells nothing."""
    won = mean_of([differences(task) for task in found.values()])
    return _said(claim, won, " points", lambda one: NOISE if one.mean < 0 <= one.high else _verdict(one.mean >= 0))


def _said(claim: str, found: Interval | None, unit: str, verdict: Callable[[Interval], str]) -> Asked:
    if found is None:
        return Asked(claim, NOT_YET, "")
    shown = found.through(points)
    return Asked(claim, difference(shown, unit), verdict(shown) if isfinite(shown.low) else TOO_FEW)


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "**missed**"
