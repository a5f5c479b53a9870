"""verdict: what each cache of a study keeps of the full cache's score.

A share is a ratio of means over tasks with its 95% interval: prompts are resampled in pairs within each task and
length, which all have the same weight (`bootstrap.share_of`). Of perplexities it is the full cache's divided by the
cell's.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite
from statistics import fmean

from ringkv.base.kv import KVChoice
from ringkv.evaluation.bootstrap import Interval, mean_of, share_of
from ringkv.evaluation.cells import FULL
from ringkv.evaluation.journal import Record
from ringkv.evaluation.outcome import Outcome, outcome
from ringkv.evaluation.summary import length_of
from ringkv.evaluation.tasks.catalogue import KINDS, TASKS

ENOUGH = 90.0  # percent of the full cache's score that a cache keeps for certain, to be named first
ORDER = ("inside", "after", "next")

Stratum = tuple[str, int | None]
"""A task, and the length of its prompts."""
Pairs = Mapping[Stratum, Sequence[tuple[float, float]]]
"""For each prompt that both answered, the score of a cell and of the full cache."""


@dataclass(frozen=True)
class Worst:
    """What suffers most: a kind of task in the plural, or a task. share: percent of the full cache's score."""

    name: str
    is_plural: bool
    share: float


@dataclass(frozen=True)
class Verdict:
    """What one cell keeps of the full cache's score, in percent; a share of None says that this score is 0.

    tasks: those that both answered. held: share of the prompt in the cache. worst: None if nothing certainly suffers
    more than the rest.
    """

    cell: str
    tasks: frozenset[str]
    prompts: int
    held: float
    share: Interval | None
    outcome: Outcome
    worst: Worst | None = None


@dataclass(frozen=True)
class Comparison:
    """Verdicts on the cells whose question is at one place, the best first; or on all that have a perplexity.

    full: the mean score of the full cache over all its answers, or its mean log-probability. prompts: that the full
    cache has answered.
    """

    place: str
    is_loss: bool
    full: float
    prompts: int
    verdicts: tuple[Verdict, ...]

    @property
    def most_useful(self) -> Verdict:
        """The smallest of the cells that certainly keep `ENOUGH`, else the best one of which something can be told."""
        told = [verdict for verdict in self.verdicts if verdict.share and isfinite(verdict.share.low)]
        enough = [verdict for verdict in told if verdict.share and verdict.share.low >= ENOUGH]
        if enough:
            return min(enough, key=lambda verdict: round(verdict.held, 2))  # the best of equal sizes is first
        return next((verdict for verdict in self.verdicts if verdict.outcome != "few"), self.verdicts[0])


def compare(records: Iterable[Record]) -> list[Comparison]:
    """Return a comparison for each place of the question, and the one of perplexities last."""
    named: dict[tuple[bool, str], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record.score is not None:
            named[TASKS[record.task].is_loss, record.place][record.cell].append(record)
    order = sorted(named, key=lambda key: (key[0], ORDER.index(key[1])))
    return [comparison for key in order if (comparison := _compared(named[key], *key))]


def _compared(by_cell: Mapping[str, Sequence[Record]], is_loss: bool, place: str) -> Comparison | None:
    """Return None if no prompt has an answer of the full cache and another one."""
    full = by_cell.get(FULL, ())
    ratio = _ratio_of_perplexities if is_loss else share_of
    paired = {cell: pairs(records, full) for cell, records in by_cell.items() if cell != FULL}
    verdicts = [_verdict(cell, by_cell[cell], scores, ratio) for cell, scores in paired.items() if scores]
    ranked = tuple(sorted(verdicts, key=_rank))
    return Comparison(place, is_loss, _mean(full), len(full), ranked) if verdicts else None


Ratio = Callable[[Sequence[Sequence[tuple[float, float]]]], Interval | None]


def _verdict(cell: str, records: Sequence[Record], scores: Pairs, ratio: Ratio) -> Verdict:
    share = _percent(ratio(list(scores.values())))
    prompts = sum(map(len, scores.values()))
    return Verdict(
        cell=cell,
        tasks=frozenset(task for task, _ in scores),
        prompts=prompts,
        held=fmean(record.kept / max(1, record.prompt_tokens) for record in records),
        share=share,
        outcome=_outcome(share, prompts) if share else "few",
        worst=_worst(scores, share, ratio) if share else None,
    )


def pairs(records: Iterable[Record], full: Iterable[Record]) -> Pairs:
    """Return the scores of the prompts that both have answered."""
    of_full = {record.key[:3]: record.score for record in full}
    paired: dict[Stratum, list[tuple[float, float]]] = defaultdict(list)
    for record in records:
        other = of_full.get(record.key[:3])
        if record.score is not None and other is not None:
            paired[record.task, length_of(record)].append((record.score, other))
    return paired


def _ratio_of_perplexities(scores: Sequence[Sequence[tuple[float, float]]]) -> Interval | None:
    """Return the full cache's perplexity divided by the cell's, from mean log-probabilities."""
    difference = mean_of([[score - full for score, full in stratum] for stratum in scores])
    return difference and difference.through(exp)


def _percent(share: Interval | None) -> Interval | None:
    return share and share.through(lambda value: 100 * value)


def _outcome(share: Interval, prompts: int) -> Outcome:
    return outcome(share.through(lambda value: value - 100), prompts)


def _rank(verdict: Verdict) -> tuple[float, float, bool]:
    """Sort the highest share first, of equal ones the smaller, and of equal sizes that of the default policy."""
    is_other = verdict.cell.split()[0] != KVChoice().policy
    return -verdict.share.mean if verdict.share else 0.0, round(verdict.held, 2), is_other


def _worst(scores: Pairs, share: Interval, ratio: Ratio) -> Worst | None:
    """Return the kind of task that suffers most, or the task if all are of one kind."""
    by_kind = _grouped(scores, lambda task: KINDS.get(task, task))
    parts = by_kind if len(by_kind) > 1 else _grouped(scores, str)
    shares = {name: part for name, strata in parts.items() if (part := _percent(ratio(strata)))}
    if len(shares) < 2:
        return None
    name, least = min(shares.items(), key=lambda item: item[1].mean)
    suffers = _outcome(least, sum(map(len, parts[name]))) == "worse" and least.mean < share.mean
    return Worst(name, len(by_kind) > 1, least.mean) if suffers else None


def _grouped(scores: Pairs, name: Callable[[str], str]) -> dict[str, list[Sequence[tuple[float, float]]]]:
    grouped = defaultdict(list)
    for (task, _), stratum in scores.items():
        grouped[name(task)].append(stratum)
    return grouped


def _mean(records: Iterable[Record]) -> float:
    """Return the mean over tasks and lengths."""
    by_task = defaultdict(list)
    for record in records:
        by_task[record.task, length_of(record)].append(record.score or 0.0)
    return fmean(map(fmean, by_task.values()))
