"""Recall: a list of names with a number each, and one name to answer. Its lines are the shortest needles there are, so
a model of a few million parameters learns it in minutes (`examples/train`).

Source: associative recall with many keys, as in Zoology (arXiv 2312.04927); names are RULER's nouns. Numbers have six
digits, two tokens in most tokenizers: the first follows from prefill alone, the second needs the cache.
"""

from collections.abc import Iterator, Mapping
from itertools import cycle
from random import Random

from ringkv.evaluation.sample import Sample
from ringkv.evaluation.tasks.draft import generated
from ringkv.evaluation.tasks.source import Source
from ringkv.evaluation.tasks.texts import words

ANSWER_TOKENS = 8  # six digits, in any tokenizer


def numbers(rng: Random, count: int, halves: int = 900) -> Mapping[str, str]:
    """Return `count` names, or all if there are fewer, with a number each, whose halves have three digits.

    halves: how many different halves there are. First halves differ within a list, if there are as many.
    """
    names = rng.sample(words("noun"), min(count, len(words("noun"))))
    firsts = cycle(rng.sample(range(100, 100 + halves), halves))
    return {name: f"{first}{rng.randrange(100, 100 + halves)}" for name, first in zip(names, firsts, strict=False)}


def listed(pairs: Mapping[str, str]) -> str:
    return "Numbers by name:\n\n" + "\n".join(f"{name}: {number}" for name, number in pairs.items())


def question(name: str) -> str:
    return f"\n\nWhich number does {name} have in the list above?"


def draft(seed: str, hay: int, depth: float) -> Sample:
    """Return a list of `hay` names, of which the one at `depth` is asked for."""
    pairs = numbers(Random(seed), hay)
    name, number = list(pairs.items())[round(depth * (len(pairs) - 1))]
    return Sample(listed(pairs), question(name), f"\n{name}:", (number,), {"depth": depth})


def samples(source: Source) -> Iterator[Sample]:
    return generated(draft, "recall", ANSWER_TOKENS, source)
