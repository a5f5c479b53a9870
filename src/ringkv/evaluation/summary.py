"""Summary: the mean of each task and cell, and the difference of each cell from the full cache.

A difference is between answers to the same prompts, so that the difficulty of prompts cancels. An interval that
contains zero is noise: the data show no difference.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, expm1
from statistics import fmean

from ringkv.evaluation.bootstrap import Interval, mean_of
from ringkv.evaluation.cells import FULL
from ringkv.evaluation.journal import Record
from ringkv.evaluation.tasks.catalogue import TASKS


@dataclass(frozen=True)
class CellScore:
    """One task, or the mean over the tasks of a group, under one cell.

    length: of generated prompts; None for prompts of their own lengths. mean: percent, or a perplexity. over_full:
    difference in percentage points, or the ratio of perplexities less 1 in percent.
    """

    task: str
    place: str
    length: int | None
    cell: str
    count: int
    failed: int
    mean: float | None
    over_full: Interval | None
    kept: float  # share of the prompt, on average
    output_tokens: float
    ring_wraps: float


def task_scores(records: Sequence[Record]) -> list[CellScore]:
    """A score for each task, place, length and cell, in the order of tasks, with the full cache first."""
    named: dict[tuple[str, str, int | None, str], list[Record]] = defaultdict(list)
    for record in records:
        named[record.task, record.place, length_of(record), record.cell].append(record)
    order = {name: place for place, name in enumerate(TASKS)}
    keys = sorted(named, key=lambda key: (order.get(key[0], 0), *_order(key)))
    return [_task_score(key, named[key], named.get((*key[:3], FULL), ())) for key in keys]


def group_scores(records: Sequence[Record]) -> list[CellScore]:
    """The mean over the tasks of each group, all with the same weight. Perplexities are not in a group."""
    named: dict[tuple[str, str, int | None, str], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        task = TASKS[record.task]
        if not task.is_loss:
            named[task.group, record.place, length_of(record), record.cell][record.task].append(record)
    keys = sorted(named, key=lambda key: (key[0], *_order(key)))
    return [_group_score(key, named[key], named.get((*key[:3], FULL), {})) for key in keys if len(named[key]) > 1]


def _order(key: tuple[str, str, int | None, str]) -> tuple[bool, int, bool, str]:
    _, place, length, cell = key
    return place != "inside", length or 0, cell != FULL, cell


def length_of(record: Record) -> int | None:
    length = record.facts.get("length")
    return int(length) if length is not None else None


def _task_score(key: tuple[str, str, int | None, str], own: Sequence[Record], full: Sequence[Record]) -> CellScore:
    task, place, length, cell = key
    is_loss = TASKS[task].is_loss
    scored = [one for one in own if one.score is not None]
    return CellScore(
        task=task,
        place=place,
        length=length,
        cell=cell,
        count=len(scored),
        failed=len(own) - len(scored),
        mean=_shown([one.score for one in scored if one.score is not None], is_loss) if scored else None,
        over_full=_difference([paired(scored, full)], _ratio if is_loss else points) if cell != FULL else None,
        **_averages(scored),
    )


def _group_score(
    key: tuple[str, str, int | None, str], own: Mapping[str, Sequence[Record]], full: Mapping[str, Sequence[Record]]
) -> CellScore:
    group, place, length, cell = key
    scored = {task: [one for one in records if one.score is not None] for task, records in own.items()}
    means = [fmean(one.score or 0.0 for one in records) for records in scored.values() if records]
    everything = [one for records in scored.values() for one in records]
    pairs = [paired(records, full.get(task, ())) for task, records in scored.items()]
    return CellScore(
        task=f"{group}, mean of {len(means)} tasks",
        place=place,
        length=length,
        cell=cell,
        count=len(everything),
        failed=sum(map(len, own.values())) - len(everything),
        mean=100 * fmean(means) if means else None,
        over_full=_difference(pairs, points) if cell != FULL else None,
        **_averages(everything),
    )


def paired(own: Sequence[Record], full: Sequence[Record]) -> list[float]:
    """The score less the full cache's score, for each prompt that has both."""
    of_full = {one.sample: one.score for one in full}
    scored = [(one.score, of_full.get(one.sample)) for one in own]
    return [score - other for score, other in scored if score is not None and other is not None]


def _difference(pairs: Sequence[Sequence[float]], shown: Callable[[float], float]) -> Interval | None:
    found = mean_of(pairs)
    return None if found is None else found.through(shown)


def points(difference: float) -> float:
    """Percentage points, from a difference of shares."""
    return 100 * difference


def _ratio(difference: float) -> float:
    """The ratio of perplexities less 1 in percent, from a difference of mean log-probabilities."""
    return 100 * expm1(-difference)


def _shown(scores: Sequence[float], is_loss: bool) -> float:
    return exp(-fmean(scores)) if is_loss else 100 * fmean(scores)


def _averages(records: Sequence[Record]) -> dict[str, float]:
    def mean(of: Callable[[Record], float]) -> float:
        return fmean(map(of, records)) if records else 0.0

    return {
        "kept": mean(lambda one: one.kept / max(1, one.prompt_tokens)),
        "output_tokens": mean(lambda one: one.output_tokens),
        "ring_wraps": mean(lambda one: one.ring_wraps),
    }
