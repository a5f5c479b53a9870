"""needle: retrieval with compressed caches: a number hidden in prose at varied depth, and a question for it at the end.

Every engine gets each prompt alone. An answer is right if its first tokens contain the number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice
from pydoc_data.topics import topics
from statistics import fmean

from bench.peers.cells import PeerCell
from bench.peers.engines import ENGINES, Bits
from bench.peers.journal import TrialRecord
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.tokenizer import Tokenizer

ANSWER = 24  # tokens of an answer, which must contain the number
QUESTION = "What is the special magic number mentioned in the text? Answer with the number only."


@dataclass(frozen=True)
class Needle:
    tokens: list[int]
    number: str


def needles(tokenizer: Tokenizer, template: ChatTemplate, count: int, length: int) -> list[Needle]:
    """Return `count` chat prompts of at most `length` tokens, with the needle at depths from 0 to 1 in even steps.

    The prose is the Python language reference that ships with this Python version; each prompt has its own stretch.
    """
    words = tokenizer.encode("\n\n".join(topics.values()), add_special_tokens=False)
    prose = chain.from_iterable(cycle([words]))
    stretches = [list(islice(prose, length)) for _ in range(count)]
    depths = [place / max(1, count - 1) for place in range(count)]
    return [
        _needle(tokenizer, template, stretch, length, _number(place), depth)
        for place, (stretch, depth) in enumerate(zip(stretches, depths, strict=True))
    ]


def _needle(
    tokenizer: Tokenizer, template: ChatTemplate, prose: list[int], length: int, number: str, depth: float
) -> Needle:
    """Return a prompt whose prose is shortened until it fits, as re-encoded text may have a few more tokens."""
    while True:
        tokens = template.encode(
            [{"role": "user", "content": _with(tokenizer.decode(prose), number, depth)}], tokenizer
        )
        if len(tokens) <= length:
            return Needle(tokens, number)
        prose = prose[: length - len(tokens)]


def _number(place: int) -> str:
    return str(1_000_003 + 7_368_787 * (place + 1) % 8_999_993)


def _with(text: str, number: str, depth: float) -> str:
    """Insert the needle between two lines of the text, and append the question."""
    at = text.find("\n", int(depth * (len(text) - 1)))
    at = len(text) if at < 0 else at
    return f"{text[:at]}\nThe special magic number is {number}.\n{text[at:]}\n\n{QUESTION}"


def recalls(
    records: Sequence[TrialRecord], found: Sequence[Needle], decode: Callable[[list[int]], str], length: int, bits: Bits
) -> list[PeerCell]:
    """Return one cell per engine; a trial is "needle-LENGTH/PLACE/GROUP". A failed answer is not counted."""
    cells = []
    for name in ENGINES:
        own = [record for record in records if record["kind"] == "output" and record["engine"] == name]
        right = [
            found[int(record["trial"].split("/")[1])].number in decode(record["tokens"][:ANSWER]) for record in own
        ]
        why = next((one["why"] for one in records if one["kind"] == "failed" and one["engine"] == name), None)
        if own or why:
            cells.append(_cell(name, length, right, why, bits))
    return cells


def _cell(name: str, prompt: int, right: Sequence[bool], why: str | None, bits: Bits) -> PeerCell:
    engine = ENGINES[name]
    return PeerCell(
        engine=name,
        prompt=prompt,
        requests=1,
        weights=engine.weights[bits],
        kept=engine.kept(prompt),
        protocol="needle",
        recall=fmean(right) if right else None,
        why=None if right else why,
    )
