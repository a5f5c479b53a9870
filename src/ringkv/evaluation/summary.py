"""Summary: what the records say: a mean for each task and cell, and how much each cell loses against the full cache.

A difference is between answers to the same prompts, so their hardness cancels. An interval that holds zero is noise:
the data do not tell the two apart.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, expm1
from statistics import fmean

from ringkv.evaluation.bootstrap import Interval, mean_of
from ringkv.evaluation.cells import FULL
from ringkv.evaluation.journal import Record
from ringkv.evaluation.tasks.catalogue import TASKS


@dataclass(frozen=True)
class Figure:
    """One task, or a group's mean over its tasks, under one cell. `length` None: prompts as long as they are.

    mean: percent, or a perplexity. over_full: in percent points, or the ratio of perplexities less 1 in percent.
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


def figures(records: Sequence[Record]) -> list[Figure]:
    """Of each task at each length, in the tasks' order; the full cache first."""
    named: dict[tuple[str, str, int | None, str], list[Record]] = defaultdict(list)
    for record in records:
        named[record.task, record.place, length_of(record), record.cell].append(record)
    order = {name: place for place, name in enumerate(TASKS)}
    keys = sorted(named, key=lambda key: (order.get(key[0], 0), *_order(key)))
    return [_figure(key, named[key], named.get((*key[:3], FULL), ())) for key in keys]


def group_figures(records: Sequence[Record]) -> list[Figure]:
    """The mean over a group's tasks, each counting alike; perplexity has no place in one."""
    named: dict[tuple[str, str, int | None, str], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        task = TASKS[record.task]
        if not task.is_loss:
            named[task.group, record.place, length_of(record), record.cell][record.task].append(record)
    keys = sorted(named, key=lambda key: (key[0], *_order(key)))
    return [_group_figure(key, named[key], named.get((*key[:3], FULL), {})) for key in keys if len(named[key]) > 1]


def _order(key: tuple[str, str, int | None, str]) -> tuple[bool, int, bool, str]:
    _, place, length, cell = key
    return place != "inside", length or 0, cell != FULL, cell


def length_of(record: Record) -> int | None:
    length = record.facts.get("length")
    return int(length) if length is not None else None


def _figure(key: tuple[str, str, int | None, str], own: Sequence[Record], full: Sequence[Record]) -> Figure:
    task, place, length, cell = key
    is_loss = TASKS[task].is_loss
    right = [one for one in own if one.score is not None]
    return Figure(
        task=task,
        place=place,
        length=length,
        cell=cell,
        count=len(right),
        failed=len(own) - len(right),
        mean=_shown([one.score for one in right if one.score is not None], is_loss) if right else None,
        over_full=_difference([paired(right, full)], _ratio if is_loss else points) if cell != FULL else None,
        **_held(right),
    )


def _group_figure(
    key: tuple[str, str, int | None, str], own: Mapping[str, Sequence[Record]], full: Mapping[str, Sequence[Record]]
) -> Figure:
    group, place, length, cell = key
    right = {task: [one for one in records if one.score is not None] for task, records in own.items()}
    means = [fmean(one.score or 0.0 for one in records) for records in right.values() if records]
    everything = [one for records in right.values() for one in records]
    pairs = [paired(records, full.get(task, ())) for task, records in right.items()]
    return Figure(
        task=f"{group}, mean of {len(means)} tasks",
        place=place,
        length=length,
        cell=cell,
        count=len(everything),
        failed=sum(map(len, own.values())) - len(everything),
        mean=100 * fmean(means) if means else None,
        over_full=_difference(pairs, points) if cell != FULL else None,
        **_held(everything),
    )


def paired(own: Sequence[Record], full: Sequence[Record]) -> list[float]:
    """Score less that of the full cache, for each prompt that has both."""
    known = {one.sample: one.score for one in full}
    return [one.score - other for one in own if one.score is not None and (other := known.get(one.sample)) is not None]


def _difference(pairs: Sequence[Sequence[float]], shown: Callable[[float], float]) -> Interval | None:
    found = mean_of(pairs)
    return None if found is None else found.through(shown)


def points(difference: float) -> float:
    """Percent points, of shares."""
    return 100 * difference


def _ratio(difference: float) -> float:
    """Of perplexities less 1 in percent, from a difference of mean log-probabilities."""
    return 100 * expm1(-difference)


def _shown(scores: Sequence[float], is_loss: bool) -> float:
    return exp(-fmean(scores)) if is_loss else 100 * fmean(scores)


def _held(records: Sequence[Record]) -> dict[str, float]:
    def mean(of: Callable[[Record], float]) -> float:
        return fmean(map(of, records)) if records else 0.0

    return {
        "kept": mean(lambda one: one.kept / max(1, one.prompt_tokens)),
        "output_tokens": mean(lambda one: one.output_tokens),
        "ring_wraps": mean(lambda one: one.ring_wraps),
    }


def depths(records: Sequence[Record]) -> Iterator[tuple[str, str, Mapping[tuple[float, int], float]]]:
    """(cell, place, (depth, length) -> percent found) of lone needles."""
    named: dict[tuple[str, str], dict[tuple[float, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        length = length_of(record)
        if "depth" in record.facts and length is not None and record.score is not None:
            named[record.cell, record.place][float(record.facts["depth"]), length].append(record.score)
    for (cell, place), found in named.items():
        yield cell, place, {at: 100 * fmean(scores) for at, scores in found.items()}
