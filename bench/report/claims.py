"""claims: the hypotheses of the accuracy studies, with their results.

A claim is judged only if there are enough prompts for an interval. Intervals are 95% bootstraps over prompts.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import isfinite
from statistics import fmean as mean
from typing import NamedTuple

from bench.results import table
from ringkv.evaluation.bootstrap import Interval, mean_of, share_of
from ringkv.evaluation.journal import Record
from ringkv.evaluation.report.rows import difference
from ringkv.evaluation.summary import points

Scores = Sequence[tuple[float, ...]]  # for each prompt, a score under each cache
TaskScores = Mapping[str, Scores]  # by task
StudyRecords = Mapping[str, Sequence[Record]]  # by study
Judgement = tuple[str, str]  # the result, and the verdict

HALF = 50.0  # percent of the loss
MET, TOO_FEW, NOISE, NOT_YET = "met", "too few prompts", "not distinguishable", "not answered yet"
HEAD = ("claim", "prompts", "found", "verdict")
KVPRESS = "window=64 kernel=5 pooling=avg"
# Tasks that our settings were tuned on; they are not an independent test of these settings.
TUNED_ON = ("niah_single_2", "niah_multikey_1", "niah_single_3", "niah_multikey_2", "niah_multivalue")


class Claim(NamedTuple):
    """A claim about one study. caches: labels of the cells whose scores on the same prompts `judge` compares.

    full: another study with the same prompts, whose scores of the full cache are compared.
    """

    text: str
    study: str
    judge: Callable[[TaskScores], Judgement]
    caches: tuple[str, ...]
    without: tuple[str, ...] = ()
    only: str = ""  # tasks whose names begin with this
    place: str = "inside"
    full: str = ""

    def row(self, answers: StudyRecords) -> tuple[str, str, str, str]:
        records = [*answers.get(self.study, ()), *(one for one in answers.get(self.full, ()) if one.cell == "full")]
        found = paired_scores(records, self.caches, self.place)
        kept = {task: found[task] for task in found if task.startswith(self.only) and task not in self.without}
        prompts = sum(map(len, kept.values()))
        return (self.text, f"{prompts}", *(self.judge(kept) if kept else (NOT_YET, "")))


def claims_table(answers: StudyRecords) -> str:
    return table(HEAD, [claim.row(answers) for claim in CLAIMS])


def unmet_claims(answers: StudyRecords) -> str:
    """Return the table of the claims that are not met, and a sentence with the number of all others."""
    rows = [claim.row(answers) for claim in CLAIMS]
    left = [row for row in rows if row[-1] != MET]
    return f"{table(HEAD, left)}\n\nMet: {len(rows) - len(left)} others (`python -m bench.report claims`)."


def paired_scores(records: Iterable[Record], caches: Sequence[str], place: str = "inside") -> TaskScores:
    """Return by task the scores of the prompts that have a score under every cache."""
    by_prompt: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for one in records:
        if one.place == place and one.score is not None:
            by_prompt[one.task, one.sample][one.cell] = one.score
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for (task, _), scores in by_prompt.items():
        if all(cache in scores for cache in caches):
            found[task].append(tuple(scores[cache] for cache in caches))
    return found


def within_share(percent: float, found: TaskScores) -> Judgement:
    """Judge by the mean whether the first cache loses at most so many percent of the second's mean."""
    lost = share_of([[(ours - full, full) for ours, full in task] for task in found.values()])
    return _judge_interval(lost, "%", lambda one: _verdict(one.mean >= -percent))


def within_points(most: float, found: TaskScores) -> Judgement:
    """Judge by the mean whether the first cache loses at most so many points against the second."""
    lost = mean_of([_differences(task) for task in found.values()])
    return _judge_interval(lost, " points", lambda one: _verdict(one.mean >= -most))


def at_least(percent: float, found: TaskScores) -> Judgement:
    """Judge by the mean whether the only cache scores so many percent."""
    share = mean_of([[one for (one,) in task] for task in found.values()])
    words, verdict = _judge_interval(share, "%", lambda one: _verdict(one.mean >= percent))
    return words.replace("+", ""), verdict


def no_worse_on_average(found: TaskScores) -> Judgement:
    """Judge `no_worse` by the means of the first half of the caches and of the second, for each prompt."""
    halves = {task: [_halves(one) for one in scores] for task, scores in found.items()}
    return no_worse(halves)


def _halves(scores: tuple[float, ...]) -> tuple[float, float]:
    middle = len(scores) // 2
    return mean(scores[:middle]), mean(scores[middle:])


def no_worse(found: TaskScores) -> Judgement:
    """Judge whether the first cache scores no less than the second.

    The claim is missed if the whole interval is below zero. A lower mean whose interval includes zero is undecided.
    """
    won = mean_of([_differences(task) for task in found.values()])
    return _judge_interval(won, " points", lambda one: NOISE if one.mean < 0 <= one.high else _verdict(one.mean >= 0))


def recovered(found: TaskScores) -> Judgement:
    """Judge by the mean whether the first cache recovers half of the second's loss against the third."""
    share = share_of([[(best - lossy, full - lossy) for best, lossy, full in task] for task in found.values()])
    return _judge_interval(share, "%", lambda one: _verdict(one.mean >= HALF))


def above_on_each(found: TaskScores) -> Judgement:
    """Judge each task on its own; the claim is met if every interval is above zero."""
    won = {task: one.through(points) for task, scores in found.items() if (one := mean_of([_differences(scores)]))}
    if few := sum(not isfinite(one.low) for one in won.values()):
        return f"no interval on {few} of {len(won)} tasks", TOO_FEW
    unsure = [f"{task} {difference(one)}" for task, one in won.items() if one.low <= 0]
    words = f"on {len(won) - len(unsure)} of {len(won)} tasks" + f"; not on {'; '.join(unsure)}" * bool(unsure)
    return words, _verdict(not unsure)


def _differences(scores: Scores) -> list[float]:
    return [one[0] - one[1] for one in scores]


def _judge_interval(found: Interval | None, unit: str, verdict: Callable[[Interval], str]) -> Judgement:
    if found is None:
        return NOT_YET, ""
    shown = found.through(points)
    return difference(shown, unit), verdict(shown) if isfinite(shown.low) else TOO_FEW


def _verdict(is_met: bool) -> str:
    return MET if is_met else "**missed**"


def _claims() -> Iterator[Claim]:
    first, later = "longbench-qwen", "choosing-longbench-qwen"
    at4, wide4 = "snapstream 4x", "snapstream 4x window=64"
    text = "LongBench: 1/4 within 3%"
    near = partial(within_share, 3)
    yield Claim(text, later, near, (at4, "full"))
    yield Claim(f"{text}, without `lcc`", later, near, (at4, "full"), ("lcc",))
    yield Claim(f"{text}, window 64", first, near, (wide4, "full"))
    yield Claim(f"{text}, window 64, without `lcc`", first, near, (wide4, "full"), ("lcc",))
    kvpress4 = f"snapstream 4x {KVPRESS}"
    text = "scores no less than kvpress's settings on"
    yield Claim(f"1/4, window 64, {text} LongBench", first, no_worse, (wide4, kvpress4))
    text = "1/4 finds more than `streaming` on each of RULER's needle tasks"
    yield Claim(text, "default-qwen", above_on_each, (at4, "streaming 4x"), only="niah")
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
    text = "192 entries: the elastic layout solves no less of GSM8K than the paper's"
    yield Claim(text, "layouts-qwen", no_worse, ("snapstream 192", "snapstream 192 elastic=False"))


def _recall_claims() -> Iterator[Claim]:
    """Yield claims about `arkvale`, which reads a share of the entries, in pages of 32 unless they say otherwise."""
    half, quarter = ("arkvale 2x", "full"), ("arkvale 4x", "full")
    for study, text, only, full in (
        ("later-qwen", "RULER, asked later: arkvale", "", ""),
        ("estimate-later-qwen", "RULER, asked later: arkvale, estimating,", "", "later-qwen"),
        ("layer-later-qwen", "RULER, asked later: arkvale, selecting by layer,", "", "later-qwen"),
        ("later-others-qwen", "RULER's other 9 tasks, asked later: arkvale", "", ""),
        ("lookups-qwen", "640 registers, asked later: arkvale", "registers", ""),
        ("conversation-qwen", "registers, asked after another question: arkvale", "conversation", ""),
    ):
        for caches, share, most in ((half, "1/2", 3), (quarter, "1/4", 6)):
            judge = partial(within_points, most)
            yield Claim(f"{text} {share} loses at most {most} points", study, judge, caches, (), only, "next", full)
    for study, setting, full in (
        ("lookups-qwen", "", ""),
        ("lookups-16-qwen", ", pages of 16,", ""),
        ("estimate-qwen", ", pages of 16, estimating,", ""),
        ("estimate-32-qwen", ", estimating,", "estimate-qwen"),
    ):
        text, judge = f"140 UUIDs, asked later: arkvale 1/4{setting} loses at most 5 points", partial(within_points, 5)
        yield Claim(text, study, judge, quarter, (), "dictionary_140", "next", full)
    text = "RULER, another seed, 4 tasks: 1/4 loses at most 3 points"
    yield Claim(text, "inside-qwen", partial(within_points, 3), ("snapstream 4x", "full"))
    weighed, full = "snapstream 4x weigh=values heads=global", "pages-longbench-qwen"
    for study, name, label in (
        (full, "1/4", "snapstream 4x"),
        ("heads-longbench-qwen", "1/4, `--kv-heads global --kv-weigh values`,", weighed),
        (full, "arkvale 1/4", "arkvale 4x"),
        ("pages-16-longbench-qwen", "arkvale 1/4, pages of 16,", "arkvale 4x"),
    ):
        text = f"LongBench, other prompts: {name} within 1.5%"
        yield Claim(text, study, partial(within_share, 1.5), (label, "full"), full=full)
    for study, keys in (
        ("passkeys-8k-qwen", "20 pass keys in 8k"),
        ("passkeys-30k-qwen", "20 pass keys in 30k"),
        ("passkey-30k-qwen", "one pass key in each of 20 texts of 30k"),
    ):
        text = f"{keys}, asked later: arkvale finds 95% with 512 entries"
        yield Claim(text, study, partial(at_least, 95), ("arkvale 512",), place="next")
    text = "one pass key in each of 10 texts of 30k, in a workspace of 4,096: 512 entries find all"
    yield Claim(text, "workspace-passkey-qwen", partial(at_least, 100), ("snapstream 512",))


def _watching_claims() -> Iterator[Claim]:
    for policy in ("h2o", "scissorhands", "reselect", "triattention"):
        study = "calibrated-qwen" if policy == "triattention" else "watching-qwen"
        caches = tuple(f"{one} {budget}" for one in ("snapstream", policy) for budget in (192, 256, 384))
        text = f"192 to 384 entries: the ring solves no less of GSM8K than `{policy}`"
        yield Claim(text, study, no_worse_on_average, caches)


CLAIMS = (*_claims(), *_recall_claims(), *_watching_claims())
