"""needle_grid: needles found by depth and length, as one table with a group of columns for each policy."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from ringkv.base.palette import of_share
from ringkv.evaluation.cells import FULL, budget_of, policy_of
from ringkv.evaluation.journal import Record
from ringkv.evaluation.report.rows import AFTER
from ringkv.evaluation.summary import length_of

BANDS = 10  # of depth, if there are more depths


class Found(NamedTuple):
    """A share in percent as text, with its colours; empty if there were no prompts."""

    percent: str
    background: str
    colour: str


class NeedleGrid(NamedTuple):
    """policies: (name, budgets), in the order of the columns. rows: (depth, what each policy found, by column).

    A column is a budget and a length of one policy.
    """

    place: str
    policies: Sequence[tuple[str, Sequence[str]]]
    lengths: Sequence[int]
    rows: Sequence[tuple[str, Sequence[Sequence[Found]]]]


def needle_grids(records: Sequence[Record]) -> list[NeedleGrid]:
    """Return a grid for each place of the question that has answers about single needles."""
    by_place = defaultdict(list)
    for one in records:
        if "depth" in one.facts and length_of(one) is not None and one.score is not None:
            by_place[one.place].append(one)
    return [_grid(place, by_place[place]) for place in AFTER if by_place[place]]


def _grid(place: str, records: Sequence[Record]) -> NeedleGrid:
    exact = len({_depth(one) for one in records}) <= BANDS
    scores = defaultdict(list)
    for one in records:
        depth = _depth(one) if exact else min(int(_depth(one) * BANDS), BANDS - 1) / BANDS
        scores[depth, one.cell, length_of(one) or 0].append(one.score or 0.0)
    by_policy = _by_policy({cell for _, cell, _ in scores})
    lengths = sorted({length for _, _, length in scores})
    rows = [
        (
            f"{depth:.0%}" if exact else f"{depth:.0%} to {depth + 1 / BANDS:.0%}",
            [
                [_found(scores.get((depth, cell, length), [])) for cell in cells for length in lengths]
                for cells in by_policy.values()
            ],
        )
        for depth in sorted({depth for depth, _, _ in scores})
    ]
    policies = [(policy, list(map(budget_of, cells))) for policy, cells in by_policy.items()]
    return NeedleGrid(AFTER[place].removeprefix(", "), policies, lengths, rows)


def _by_policy(cells: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Return the cells of each policy, the full cache first."""
    found = defaultdict(list)
    for cell in sorted(cells, key=lambda cell: (cell != FULL, policy_of(cell), cell)):
        found[policy_of(cell)].append(cell)
    return found


def _depth(one: Record) -> float:
    return float(one.facts["depth"])


def _found(scores: Sequence[float]) -> Found:
    if not scores:
        return Found("", "transparent", "inherit")
    return Found(f"{100 * fmean(scores):.0f}", *of_share(fmean(scores)))
