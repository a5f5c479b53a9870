"""claims: what the studies of accuracy were to show, with what they found.

A claim is judged only if there are prompts enough for an interval. Intervals are 95% bootstraps over prompts.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import NamedTuple

from bench.results import table
from ringkv.evaluation.bootstrap import Interval, mean_of, share_of
from ringkv.evaluation.journal import Record
from ringkv.evaluation.report.page import difference
from ringkv.evaluation.summary import points

Scores = Sequence[tuple[float, ...]]  # for each prompt, a score under each cache
Together = Mapping[str, Scores]  # by task
Answers = Mapping[str, Sequence[Record]]  # by study
Judged = tuple[str, str]  # what was found, and the verdict

NEAR = -3.0  # percent of the full cache's mean
HALF = 50.0  # percent of what is lost
TOO_FEW, NOISE, NOT_YET = "too few prompts", "not distinguishable", "not answered yet"
KVPRESS = "window=64 kernel=5 pooling=avg"
# Tasks whose prompts chose our settings: they are no independent test of them.
TUNED_ON = ("niah_single_2", "niah_multikey_1", "niah_single_3", "niah_multikey_2", "niah_multivalue")


class Claim(NamedTuple):
    """`caches` are labels of cells; what `judge` compares is their scores of the same prompts."""

    text: str
    study: str
    judge: Callable[[Together], Judged]
    caches: tuple[str, ...]
    without: tuple[str, ...] = ()
    only: str = ""  # tasks whose names begin with this
    place: str = "inside"

    def row(self, answers: Answers) -> tuple[str, str, str, str]:
        found = together(answers.get(self.study, ()), self.caches, self.place)
        kept = {task: found[task] for task in found if task.startswith(self.only) and task not in self.without}
        prompts = sum(map(len, kept.values()))
        return (self.text, f"{prompts}", *(self.judge(kept) if kept else (NOT_YET, "")))


def claims_table(answers: Answers) -> str:
    return table(("claim", "prompts", "found", "verdict"), [claim.row(answers) for claim in CLAIMS])


def together(records: Iterable[Record], caches: Sequence[str], place: str = "inside") -> Together:
    """By task, the scores of the prompts that have one under every cache."""
    known: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for one in records:
        if one.place == place and one.score is not None:
            known[one.task, one.sample][one.cell] = one.score
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for (task, _), scores in known.items():
        if all(cache in scores for cache in caches):
            found[task].append(tuple(scores[cache] for cache in caches))
    return found


def near(found: Together) -> Judged:
    """The first cache is within 3% of the second's mean; judged by the mean."""
    lost = share_of([[(ours - full, full) for ours, full in task] for task in found.values()])
    return _said(lost, "%", lambda one: _verdict(one.mean >= NEAR))


def no_worse(found: Together) -> Judged:
    """Missed if all of the interval is below zero; a lower mean whose interval holds zero decides nothing."""
    won = mean_of([_differences(task) for task in found.values()])
    return _said(won, " points", lambda one: NOISE if one.mean < 0 <= one.high else _verdict(one.mean >= 0))


def recovered(found: Together) -> Judged:
    """The first cache wins back half of what the second loses against the third; judged by the mean."""
    share = share_of([[(best - lossy, full - lossy) for best, lossy, full in task] for task in found.values()])
    return _said(share, "%", lambda one: _verdict(one.mean >= HALF))


def above_on_each(found: Together) -> Judged:
    """Each task by itself; met if every interval is above zero."""
    won = {task: one.through(points) for task, scores in found.items() if (one := mean_of([_differences(scores)]))}
    if few := sum(not isfinite(one.low) for one in won.values()):
        return f"no interval on {few} of {len(won)} tasks", TOO_FEW
    unsure = [f"{task} {difference(one)}" for task, one in won.items() if one.low <= 0]
    words = f"on {len(won) - len(unsure)} of {len(won)} tasks" + f"; not on {'; '.join(unsure)}" * bool(unsure)
    return words, _verdict(not unsure)


def _differences(scores: Scores) -> list[float]:
    return [one[0] - one[1] for one in scores]


def _said(found: Interval | None, unit: str, verdict: Callable[[Interval], str]) -> Judged:
    if found is None:
        return NOT_YET, ""
    shown = found.through(points)
    return difference(shown, unit), verdict(shown) if isfinite(shown.low) else TOO_FEW


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "**missed**"


def _claims() -> Iterator[Claim]:
    first, later = "longbench-qwen", "choosing-longbench-qwen"
    at4, wide4 = "snapstream 4x", "snapstream 4x window=64"
    text = "1/4 is within 3% of the full cache on LongBench"
    yield Claim(text, later, near, (at4, "full"))
    yield Claim(f"{text}, without `lcc`", later, near, (at4, "full"), ("lcc",))
    yield Claim(f"{text}, window 64", first, near, (wide4, "full"))
    yield Claim(f"{text}, window 64, without `lcc`", first, near, (wide4, "full"), ("lcc",))
    kvpress4 = f"snapstream 4x {KVPRESS}"
    text = "scores no less than kvpress's settings on"
    yield Claim(f"1/4, window 64, {text} LongBench", first, no_worse, (wide4, kvpress4))
    text = "1/4 finds more than `streaming` on each of RULER's needle tasks"
    yield Claim(text, "default-qwen", above_on_each, (at4, "streaming 4x"), only="niah")
    yield Claim(f"{text}, window 64", "ruler-qwen", above_on_each, (wide4, "streaming 4x"), only="niah")
    text = "1/4 finds no fewer needles than"
    yield Claim(f"{text} kvpress's settings", "default-qwen", no_worse, (at4, kvpress4))
    yield Claim(f"{text} the full cache", "default-qwen", no_worse, (at4, "full"))
    for name, lossy in (
        ("kvpress's SnapKV", f"snapkv 2x {KVPRESS}"),
        ("snapstream, window 64,", "snapstream 2x window=64"),
    ):
        caches = "snapstream 2x select=keydiff", lossy, "full"
        text = f"1/2, question after: KeyDiff recovers half of what {name} loses on RULER"
        yield Claim(text, "ruler-qwen", recovered, caches, place="after")
    text = "1/4, window 64, scores no less than kvpress's settings on RULER"
    yield Claim(text, "ruler-qwen", no_worse, (wide4, kvpress4))
    yield Claim(f"{text}, without the tasks it was tuned on", "ruler-qwen", no_worse, (wide4, kvpress4), TUNED_ON)
    text = "a window of 32 scores no less than one of 64 on"
    yield Claim(f"1/4: {text} LongBench", later, no_worse, (at4, wide4))
    for budget, share in (("4x", "1/4"), ("8x", "1/8")):
        caches = f"snapstream {budget}", f"snapstream {budget} window=64"
        yield Claim(f"{share}: {text} RULER, another seed", "choosing-window-qwen", no_worse, caches)
    for budget in ("192", "256", "384"):
        caches = f"snapstream {budget}", f"snapstream {budget} elastic=False"
        text = f"{budget} entries: the elastic layout solves no less of GSM8K than the paper's"
        yield Claim(text, "layouts-qwen", no_worse, caches)


CLAIMS = tuple(_claims())
