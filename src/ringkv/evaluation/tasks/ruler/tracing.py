"""Tracing: find all variables that have a value, through a chain of assignments hidden in noise.

Source: RULER (arXiv 2404.06654), section 3, variable tracking: one chain of four hops.
"""

from itertools import pairwise
from pathlib import Path
from random import Random
from string import ascii_uppercase

from ringkv.evaluation.tasks.draft import Draft
from ringkv.evaluation.tasks.ruler.needles import NOISE

HOPS = 4
LETTERS = 5  # letters of a variable's name


def tracing(seed: str, hay: int, depth: float, data: Path | None) -> Draft:
    """Return a draft with the assignments in order, at random places among `hay` lines of noise."""
    rng = Random(seed)
    names = ["".join(one) for one in _names(rng, HOPS + 1)]
    value = str(rng.randint(10_000, 99_999))
    assignments = [f"VAR {names[0]} = {value}"]
    assignments += [f"VAR {to} = VAR {source}" for source, to in pairwise(names)]
    places = sorted(rng.randint(0, hay) for _ in assignments)
    lines: list[str] = []
    for line in range(hay + 1):
        lines += [one for one, place in zip(assignments, places, strict=True) if place == line]
        lines += [NOISE] * (line < hay)
    return Draft(
        context="Variables are given values in the text below, or the value of another. Follow them.\n\n"
        + "\n".join(lines),
        question=f"\n\nWhich variables hold the value {value} in the text above? Name all of them.",
        begin=f" Following the assignments, {len(names)} variables hold the value {value}:",
        references=tuple(names),
    )


def _names(rng: Random, count: int) -> list[tuple[str, ...]]:
    found: dict[tuple[str, ...], None] = {}
    while len(found) < count:
        found[tuple(rng.choices(ascii_uppercase, k=LETTERS))] = None
    return list(found)
