"""Needles: sentences that assign magic values to keys, hidden in a haystack (RULER: retrieval).

Source: RULER (arXiv 2404.06654), section 3 and appendix B: eight settings of one task. The order of parts is RULER's
(instruction, haystack, question, first words of the answer); the sentences are ours.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal
from uuid import UUID

from ringkv.evaluation.sample import Sample
from ringkv.evaluation.tasks.texts import sentences, words

NOISE = (
    "The rain fell on the roof. A dog slept beside the door. The clock went on and on. Nobody came. The rain stopped."
)
Pairs = Mapping[str, Sequence[str]]  # key -> its values
MAKERS: Mapping[str, Callable[[Random], str]] = {
    "word": lambda rng: f"{rng.choice(words('adjective'))}-{rng.choice(words('noun'))}",
    "number": lambda rng: str(rng.randint(1_000_000, 9_999_999)),
    "uuid": lambda rng: str(UUID(int=rng.getrandbits(128), version=4)),
}


@dataclass(frozen=True)
class Needles:
    """keys, values: number of keys, and of values per key. key, value: their kinds in `MAKERS`. queried: number of keys
    that the question is about.
    """

    hay: Literal["noise", "text", "needles"]
    key: str = "word"
    value: str = "number"
    keys: int = 1
    values: int = 1
    queried: int = 1

    def draft(self, seed: str, hay: int, depth: float, data: Path | None) -> Sample:
        """Return a prompt with `hay` units of haystack. A single needle is at `depth`, several are at random depths."""
        rng = Random(seed)
        pairs = self._pairs(rng, self.keys, {})
        queried = list(pairs)[: self.queried]
        stack = HAYSTACKS[self.hay](self, rng, hay, pairs, data)
        needles = [self._sentence(key, value) for key, values in pairs.items() for value in values]
        depths = [depth] if len(needles) == 1 else [rng.random() for _ in needles]
        rng.shuffle(needles)
        what, all_of = f"{self.value}s", " and ".join(filter(None, (", ".join(queried[:-1]), queried[-1])))
        several = self.values * self.queried > 1
        are, which = ("are", f"magic {what}") if several else ("is", f"magic {self.value}")
        return Sample(
            context=f"Some magic {what} are hidden in the text below. Remember them: you will be asked for some.\n\n"
            + BETWEEN[self.hay].join(_inserted(stack, needles, depths)),
            question=f"\n\nWhat {are} the {which} of {all_of} in the text above?",
            begin=f" The {which} of {all_of} in the text {are}",
            references=tuple(value for key in queried for value in pairs[key]),
            facts={"depth": depth} if len(needles) == 1 else {},
        )

    def _pairs(self, rng: Random, count: int, taken: Pairs) -> Pairs:
        """Return `count` keys that are not in `taken`, with their values."""
        key, value = MAKERS[self.key], MAKERS[self.value]
        pairs: dict[str, list[str]] = {}
        while len(pairs) < count:
            name = key(rng)
            if name not in taken:
                pairs.setdefault(name, [value(rng) for _ in range(self.values)])
        return pairs

    def _sentence(self, key: str, value: str) -> str:
        return f"One magic {self.value} of {key} is {value}."

    def others(self, rng: Random, hay: int, taken: Pairs, data: Path | None) -> list[str]:
        """Return `hay` needles with other keys, which are not queried."""
        return [self._sentence(key, value) for key, (value, *_) in self._pairs(rng, hay, taken).items()]


def _noise(_: Needles, rng: Random, hay: int, taken: Pairs, data: Path | None) -> list[str]:
    return [NOISE] * hay


def _text(_: Needles, rng: Random, hay: int, taken: Pairs, data: Path | None) -> list[str]:
    """Return consecutive sentences of prose from a random start, wrapping at the end."""
    prose = sentences(data)
    start = rng.randrange(len(prose))
    return [prose[(start + place) % len(prose)] for place in range(hay)]


def _inserted(stack: Sequence[str], needles: Sequence[str], depths: Sequence[float]) -> list[str]:
    """Insert each needle before the sentence at its depth; depth 0 is before all sentences, 1 after all."""
    places = [round(depth * len(stack)) for depth in depths]
    inserted: dict[int, list[str]] = {}
    for place, needle in zip(places, needles, strict=True):
        inserted.setdefault(place, []).append(needle)
    return [line for place in range(len(stack) + 1) for line in (*inserted.get(place, []), *stack[place : place + 1])]


HAYSTACKS = {"noise": _noise, "text": _text, "needles": Needles.others}
BETWEEN = {"noise": "\n", "text": " ", "needles": "\n"}

RETRIEVAL: Mapping[str, Needles] = {
    "niah_single_1": Needles("noise"),
    "niah_single_2": Needles("text"),
    "niah_single_3": Needles("text", value="uuid"),
    "niah_multikey_1": Needles("text", keys=4),
    "niah_multikey_2": Needles("needles"),
    "niah_multikey_3": Needles("needles", key="uuid", value="uuid"),
    "niah_multivalue": Needles("text", values=4),
    "niah_multiquery": Needles("text", keys=4, queried=4),
}
