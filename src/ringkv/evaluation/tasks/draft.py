"""Draft: a generated prompt with an amount of hay, and the search for the amount that gives a length in tokens."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ringkv.evaluation.sample import CannotMake, Sample
from ringkv.evaluation.tasks.source import Source


@dataclass(frozen=True)
class Draft:
    """Fields of a `Sample`."""

    context: str
    question: str
    begin: str
    references: tuple[str, ...]
    facts: Mapping[str, float | str] = field(default_factory=dict)


Make = Callable[[int], Draft]
"""Makes a draft with this much hay, in units of the task. Deterministic."""


def longest(make: Make, tokens: Callable[[Draft], int], most: int) -> Draft:
    """Return the draft with the most hay whose prompt has at most `most` tokens, or with all hay if that fits.

    Raises CannotMake if one unit of hay is too long. Tokens must grow with hay.
    """
    found, low, high = make(1), 1, 2
    if (shortest := tokens(found)) > most:
        raise CannotMake(
            f"the shortest prompt of this task has {shortest:,} tokens, which is over {most:,}; raise the lengths",
            "lengths",
        )
    while tokens(larger := make(high)) <= most:
        if larger == found:
            return found
        found, low, high = larger, high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if tokens(make(middle)) <= most else (low, middle)
    return make(low)


@dataclass(frozen=True)
class Fit:
    """Makes a sample whose prompt and answer have at most `length` tokens, with as much hay as fits."""

    name: str
    answer_tokens: int
    length: int
    source: Source

    def __call__(self, make: Make) -> Sample:
        return self._sample(longest(make, self._tokens, self.length - self.answer_tokens))

    def _tokens(self, draft: Draft) -> int:
        return self.source.count_tokens(self._sample(draft))

    def _sample(self, draft: Draft) -> Sample:
        return Sample(
            name=self.name,
            context=draft.context,
            question=draft.question,
            begin=draft.begin,
            references=draft.references,
            answer_tokens=self.answer_tokens,
            facts={"length": self.length, **draft.facts},
        )


def places(source: Source) -> Iterator[tuple[int, int, float]]:
    """Yield (length, index, depth): `source.count` at each length, at depths spread evenly from 0 to 1."""
    for length in source.lengths:
        for place in range(source.count):
            yield length, place, depth_of(place)


def depth_of(place: int) -> float:
    """Return 0, 1, 1/2, 1/4, 3/4, 1/8, ...: any number of depths is spread evenly, and more depths keep the first ones.

    Source: van der Corput's sequence (1935), after both ends.
    """
    if place < 2:
        return float(place)
    digits = f"{place - 1:b}"
    return int(digits[::-1], 2) / (1 << len(digits))
