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

    def sample(self, name: str, answer_tokens: int, length: int) -> Sample:
        """Return the sample of a prompt that is made for a length."""
        facts = {"length": length, **self.facts}
        return Sample(name, **{**vars(self), "facts": facts}, answer_tokens=answer_tokens)


Make = Callable[[int], Draft]
"""Makes a draft with this much hay, in units of the task. Deterministic."""


def longest(make: Make, tokens: Callable[[Draft], int], most: int) -> Draft:
    """Return the draft with the most hay whose prompt has at most `most` tokens, or with all hay if that fits.

    Raises CannotMake if one unit of hay is too long. Tokens must grow with hay.
    """
    draft, low, high = make(1), 1, 2
    if (shortest := tokens(draft)) > most:
        raise CannotMake(
            f"the shortest prompt of this task has {shortest:,} tokens, which is over {most:,}; raise the lengths",
            "lengths",
        )
    while tokens(larger := make(high)) <= most:
        if larger == draft:
            return draft
        draft, low, high = larger, high, 2 * high
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
        def tokens(draft: Draft) -> int:
            return self.source.count_tokens(draft.sample(self.name, self.answer_tokens, self.length))

        draft = longest(make, tokens, self.length - self.answer_tokens)
        return draft.sample(self.name, self.answer_tokens, self.length)


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
