"""Lookups: one text per length with many similar entries, and a question for each of some entries.

The questions share the text, which is prefilled once. Tasks are pass keys by name in noise (after Landmark Attention,
arXiv 2305.16300), lines with a register each (after LongEval's line retrieval, LongChat, 2023) and dictionaries of
UUIDs (after Lost in the Middle, arXiv 2307.03172), in our words. In conversations another register was asked for
before, and the prompt ends with its answer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, islice
from json import dumps
from random import Random
from typing import NamedTuple

from ringkv.evaluation.sample import CannotMake, Sample
from ringkv.evaluation.tasks.draft import depth_of, finished, fitted, generated
from ringkv.evaluation.tasks.ruler.needles import MAKERS, NOISE
from ringkv.evaluation.tasks.source import Source
from ringkv.evaluation.tasks.texts import words

SLACK = 24  # tokens by which questions of one text may differ
DICTIONARIES = (75, 140)  # keys
Entries = Sequence[tuple[str, str]]
"""Names and values, in the text's order."""


class Lookup(NamedTuple):
    """How a text is written and asked about.

    entries: the entries of a seed, for an amount of hay and a number of questions. write: the text of entries and hay.
    question, begin: with `{name}` for the name that is asked for. end: of an answer in the prompt; "" if the first
    question is the only one.
    """

    entries: Callable[[Random, int, int], Entries]
    write: Callable[[Entries, int], str]
    question: str
    begin: str
    answer_tokens: int
    end: str = ""

    def asked(self, name: str) -> tuple[str, str]:
        """Return the question for a name, and the beginning of the answer."""
        return self.question.format(name=name), self.begin.format(name=name)

    def earlier(self, name: str, value: str) -> str:
        """Return an earlier question with its answer, which end the text; "" if there is none."""
        return "".join((*self.asked(name), value, self.end)) if self.end else ""


def drafts(lookup: Lookup, seed: str, questions: int, hay: int) -> Iterator[Sample]:
    """Yield so many questions about one text, or one for each entry if there are fewer."""
    entries = lookup.entries(Random(seed), hay, questions)
    text = lookup.write(entries, hay)
    order = list(_spread(entries))
    for (name, value), before in islice(zip(order, (*order[1:], order[0]), strict=True), questions):
        depth = text.index(value) / len(text)
        yield Sample(text + lookup.earlier(*before), *lookup.asked(name), (value,), {"depth": depth, "hay": hay})


def _spread(entries: Entries) -> Iterator[tuple[str, str]]:
    """Yield each entry once, so that the first ones lie far apart."""
    left = set(range(len(entries)))
    places = (round(depth_of(number) * (len(entries) - 1)) for number in count())
    while left:
        place = next(places)
        if place in left:
            left.remove(place)
            yield entries[place]


def of_lengths(name: str, source: Source) -> Iterator[Sample]:
    """Yield the questions about a text of each length, with as much hay as fits."""
    lookup = LOOKUPS[name]
    for length in source.lengths:
        make = partial(drafts, lookup, f"{source.seed}/{name}/{length}", source.count)
        first = fitted(partial(_first, make), "", lookup.answer_tokens + SLACK, length, source)
        for place, draft in enumerate(make(int(first.facts["hay"]))):
            yield finished(draft, f"{length}/{place}", lookup.answer_tokens, length)


def _first(make: Callable[[int], Iterator[Sample]], hay: int) -> Sample:
    return next(make(hay))


def dictionary(keys: int, source: Source) -> Iterator[Sample]:
    """Yield the questions about one dictionary. Raises CannotMake if it is longer than the longest length."""
    lookup = LOOKUPS["dictionary"]
    for place, draft in enumerate(drafts(lookup, f"{source.seed}/dictionary/{keys}", source.count, keys)):
        sample = finished(draft, f"{keys}/{place}", lookup.answer_tokens, source.longest)
        tokens = source.count_tokens(sample) + lookup.answer_tokens
        if tokens > source.longest:
            raise CannotMake(f"{keys} keys take {tokens:,} tokens, which is over {source.longest:,}", "lengths")
        yield sample


def passkey(source: Source) -> Iterator[Sample]:
    """Yield prompts with a number of five digits, at depths from 0 to 1."""
    return generated(_hidden, "passkey", 16, source)


def _hidden(seed: str, hay: int, depth: float) -> Sample:
    key, lines = str(Random(seed).randint(10_000, 99_999)), [NOISE] * hay
    lines.insert(round(depth * hay), f"The pass key is {key}. Remember it: {key} is the pass key.")
    return Sample(
        context="There is one thing worth knowing in much idle talk. Find it and remember it.\n\n" + "\n".join(lines),
        question="\n\nWhat is the pass key?",
        begin=" The pass key is",
        references=(key,),
        facts={"depth": depth},
    )


def _names(rng: Random, count: int) -> list[str]:
    """Return `count` different names of two words."""
    adjectives, nouns = words("adjective"), words("noun")
    numbers = rng.sample(range(len(adjectives) * len(nouns)), count)
    return [f"{adjectives[number % len(adjectives)]}-{nouns[number // len(adjectives)]}" for number in numbers]


def _numbered(rng: Random, count: int) -> Entries:
    """Return names and numbers of five digits."""
    return list(zip(_names(rng, count), map(str, rng.sample(range(10_000, 100_000), count)), strict=True))


def _uuids(rng: Random, count: int) -> Entries:
    values = [MAKERS["uuid"](rng) for _ in range(2 * count)]
    return list(zip(values[::2], values[1::2], strict=True))


def _in_noise(entries: Entries, hay: int) -> str:
    """Return lines of noise with the entries spread evenly, the first before it and the last after it."""
    lines = [NOISE] * hay
    for place in reversed(range(len(entries))):
        name, value = entries[place]
        line = round(place / max(1, len(entries) - 1) * hay)
        lines.insert(line, f"The pass key of {name} is {value}. Remember it: {value} is the pass key of {name}.")
    return "There are pass keys worth knowing in much idle talk. Remember them.\n\n" + "\n".join(lines)


def _in_lines(entries: Entries, _: int) -> str:
    head = "Each of these lines names a register and its content. Remember all of them.\n\n"
    return head + "\n".join(f"line {name}: the register holds <{value}>" for name, value in entries)


_REGISTERS = Lookup(
    lambda rng, hay, _: _numbered(rng, hay),
    _in_lines,
    "\n\nWhat does the register of line {name} hold?",
    " The register of line {name} holds <",
    answer_tokens=16,
)
LOOKUPS: Mapping[str, Lookup] = {
    "passkeys": Lookup(
        lambda rng, _, count: _numbered(rng, count),
        _in_noise,
        "\n\nWhat is the pass key of {name}?",
        " The pass key of {name} is",
        answer_tokens=16,
    ),
    "registers": _REGISTERS,
    "conversation": _REGISTERS._replace(answer_tokens=40, end=">."),
    "dictionary": Lookup(
        lambda rng, hay, _: _uuids(rng, hay),
        lambda entries, _: f"JSON data:\n{dumps(dict(entries), indent=1)}",
        '\n\nWhich value does the key "{name}" have in the JSON data?',
        ' "{name}": "',
        answer_tokens=48,
    ),
}
