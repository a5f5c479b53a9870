"""Summary: the mean of each task and cell, and the difference of each cell from the full cache.

A difference is between answers to the same prompts, so that the difficulty of prompts cancels. An interval that
contains zero is noise: the data show no difference.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
    is_loss: bool


Key = tuple[str, str, int | None, str]
"""A task or group, the place of its question, the length of its prompts, and a cell."""


def task_scores(records: Sequence[Record]) -> list[CellScore]:
    """A score for each task, place, length and cell, in the order of tasks, with the full cache first."""
    order = {name: place for place, name in enumerate(TASKS)}
    named = _grouped(records, lambda record: record.task)
    return [_score(key, named) for key in sorted(named, key=lambda key: (order.get(key[0], 0), *_order(key)))]


def group_scores(records: Sequence[Record]) -> list[CellScore]:
    """The mean over the tasks of each group, all with the same weight. Perplexities are not in a group."""
    shares = [record for record in records if not TASKS[record.task].is_loss]
    named = _grouped(shares, lambda record: TASKS[record.task].group)
    keys = sorted(named, key=lambda key: (key[0], *_order(key)))
    return [_score(key, named) for key in keys if len(named[key]) > 1]


def _grouped(records: Sequence[Record], name: Callable[[Record], str]) -> Mapping[Key, Mapping[str, Sequence[Record]]]:
    """Return the records by key and task."""
    named: dict[Key, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        named[name(record), record.place, length_of(record), record.cell][record.task].append(record)
    return named


def _order(key: Key) -> tuple[bool, int, bool, str]:
    _, place, length, cell = key
    return place != "inside", length or 0, cell != FULL, cell


def length_of(record: Record) -> int | None:
    length = record.facts.get("length")
    return int(length) if length is not None else None


def _score(key: Key, named: Mapping[Key, Mapping[str, Sequence[Record]]]) -> CellScore:
    name, place, length, cell = key
    by_task, full = named[key], named.get((name, place, length, FULL), {})
    scored = {task: [record for record in records if record.score is not None] for task, records in by_task.items()}
    answers = [record for records in scored.values() for record in records]
    means = [fmean(record.score or 0.0 for record in records) for records in scored.values() if records]
    is_loss = any(TASKS[task].is_loss for task in by_task)
    difference = mean_of([paired(records, full.get(task, ())) for task, records in scored.items()])

    def average(of: Callable[[Record], float]) -> float:
        return fmean(map(of, answers)) if answers else 0.0

    return CellScore(
        task=name if len(by_task) == 1 else f"{name}, mean of {len(means)} tasks",
        place=place,
        length=length,
        cell=cell,
        count=len(answers),
        failed=sum(map(len, by_task.values())) - len(answers),
        mean=(exp(-fmean(means)) if is_loss else 100 * fmean(means)) if means else None,
        over_full=difference.through(partial(_shown, is_loss=is_loss)) if difference and cell != FULL else None,
        kept=average(lambda record: record.kept / max(1, record.prompt_tokens)),
        output_tokens=average(lambda record: record.output_tokens),
        ring_wraps=average(lambda record: record.ring_wraps),
        is_loss=is_loss,
    )


def paired(records: Sequence[Record], full: Sequence[Record]) -> list[float]:
    """The score less the full cache's score, for each prompt that has both."""
    of_full = {record.sample: record.score for record in full}
    scored = [(record.score, of_full.get(record.sample)) for record in records]
    return [score - other for score, other in scored if score is not None and other is not None]


def _shown(difference: float, is_loss: bool) -> float:
    """Percentage points, or the ratio of perplexities less 1 in percent if it is of mean log-probabilities."""
    return 100 * expm1(-difference) if is_loss else 100 * difference
