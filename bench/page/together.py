"""Scores of the same prompts under several cells, so that what makes a prompt hard cancels."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from ringkv.evaluation import journal

Scores = Sequence[tuple[float, ...]]  # for each prompt, a score under each cell
Together = Mapping[str, Scores]


def together(folder: Path, cells: Sequence[str], place: str = "inside") -> Together:
    """By task, of the prompts that have a score under all of the cells; nothing where the study has no answers."""
    path = folder / journal.NAME
    if not path.is_file():
        return {}
    known: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for one in journal.read(path):
        if one.place == place and one.score is not None:
            known[one.task, one.sample][one.cell] = one.score
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for (task, _), scores in known.items():
        if all(cell in scores for cell in cells):
            found[task].append(tuple(scores[cell] for cell in cells))
    return found


def differences(scores: Scores) -> list[float]:
    """The first cell's less the second's."""
    return [one[0] - one[1] for one in scores]
