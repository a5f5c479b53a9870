"""Draft: a generated prompt that has not found its length yet, and the way to a sample that has."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ringkv.evaluation.sample import CannotMake, Sample
from ringkv.evaluation.tasks.source import Source


@dataclass(frozen=True)
class Draft:
    """See `Sample`, whose fields these become."""

    context: str
    question: str
    begin: str
    references: tuple[str, ...]
    facts: Mapping[str, float | str] = field(default_factory=dict)


Make = Callable[[int], Draft]
"""The draft with so much hay: units are the task's own. The same each time it is asked."""


def longest(make: Make, tokens: Callable[[Draft], int], most: int) -> Draft:
    """The draft with the most hay whose prompt has at most `most` tokens; with all there is, where hay comes to an end.

    Raises CannotMake when even one unit is too long. Tokens must grow with hay.
    """
    found, low, high = make(1), 1, 2
    if (shortest := tokens(found)) > most:
        what = f"{most:,} tokens hold no prompt of this task, whose shortest has {shortest:,}"
        raise CannotMake(f"{what}; ask for longer ones", "lengths")
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
    """From drafts to a sample whose prompt and answer have `length` tokens, or nearly."""

    name: str
    answer_tokens: int
    length: int
    source: Source

    def __call__(self, make: Make) -> Sample:
        return self._sample(longest(make, self._tokens, self.length - self.answer_tokens))

    def _tokens(self, draft: Draft) -> int:
        return self.source.tokens(self._sample(draft))

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
    """(length, number, depth): `source.count` at each length, at depths spread evenly from 0 to 1."""
    for length in source.lengths:
        for place in range(source.count):
            yield length, place, depth_of(place)


def depth_of(place: int) -> float:
    """0, 1, 1/2, 1/4, 3/4, 1/8, ...: evenly spread however many there are, and the same for a place in any number.

    Source: van der Corput's sequence (1935), its two ends first.
    """
    if place < 2:
        return float(place)
    digits = f"{place - 1:b}"
    return int(digits[::-1], 2) / (1 << len(digits))
