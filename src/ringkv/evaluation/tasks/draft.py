"""Drafts: generated prompts with an amount of hay, and the search for the amount that gives a length in tokens."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from ringkv.evaluation.sample import CannotMake, Sample
from ringkv.evaluation.tasks.source import Source

Make = Callable[[int], Sample]
"""Makes a draft with this much hay, in units of the task. Deterministic."""


def finished(draft: Sample, name: str, answer_tokens: int, length: int) -> Sample:
    """Return the sample of a draft that is made for a length."""
    return replace(draft, name=name, answer_tokens=answer_tokens, facts={"length": length, **draft.facts})


def fitted(make: Make, name: str, answer_tokens: int, length: int, source: Source) -> Sample:
    """Return a sample whose prompt and answer have at most `length` tokens, with as much hay as fits."""
    room = length - answer_tokens
    return longest(lambda hay: finished(make(hay), name, answer_tokens, length), source.count_tokens, room)


def longest(make: Make, tokens: Callable[[Sample], int], most: int) -> Sample:
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


def generated(recipe: Callable[..., Sample], name: str, answer_tokens: int, source: Source) -> Iterator[Sample]:
    """Yield `source.count` samples of each length. recipe: makes a draft of a seed, its hay, and a depth of 0 to 1."""
    for length in source.lengths:
        for place in range(source.count):
            make = partial(recipe, f"{source.seed}/{name}/{length}/{place}", depth=depth_of(place))
            yield fitted(make, f"{length}/{place}", answer_tokens, length, source)


def depth_of(place: int) -> float:
    """Return 0, 1, 1/2, 1/4, 3/4, 1/8, ...: any number of depths is spread evenly, and more depths keep the first ones.

    Source: van der Corput's sequence (1935), after both ends.
    """
    if place < 2:
        return float(place)
    digits = f"{place - 1:b}"
    return int(digits[::-1], 2) / (1 << len(digits))
