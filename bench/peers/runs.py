"""runs: the four things that can be measured, each as what it plays and the cells that come of it."""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bench.peers.analyse import cells
from bench.peers.cells import Cell, Protocol
from bench.peers.journal import Record
from bench.peers.needle import ANSWER, needles, recalls
from bench.peers.play import Turns
from bench.peers.protocols import Bench, Lengths, equal_bytes, resident, retrieval, same
from bench.peers.workload import fitting
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.tokenizer import Tokenizer


class Texts(NamedTuple):
    """What turns text into prompts, and the model's context in tokens."""

    tokenizer: Tokenizer
    template: ChatTemplate
    context: int


class Run(NamedTuple):
    """`suffix` of the journal's name; `fields`, the arguments it goes by; `play` measures; `cells` of the records."""

    suffix: str
    protocol: Protocol
    fields: tuple[str, ...]
    play: Callable[[Namespace, Bench, Texts], None]
    cells: Callable[[Namespace, Sequence[Record], Texts], list[Cell]]


def chosen(asked: Namespace) -> Run:
    asked_for = {"equal-bytes": asked.equal_bytes, "resident": asked.resident, "needle": asked.needle, "same": True}
    return RUNS[next(name for name, wanted in asked_for.items() if wanted)]


def turns(asked: Namespace) -> Turns:
    if asked.needle:
        return Turns(1, ANSWER, asked.timeout)
    return Turns(asked.turns, asked.steps, asked.timeout)


def _lengths(asked: Namespace, texts: Texts) -> list[int]:
    return _fitting(asked.prompts, texts)


def _fitting(lengths: Sequence[int], texts: Texts) -> list[int]:
    return sorted({fitting(length, texts.context) for length in lengths})


def _play_same(asked: Namespace, bench: Bench, texts: Texts) -> None:
    lengths = Lengths(_lengths(asked, texts), _fitting(asked.batch_prompts, texts))
    same(bench, lengths, asked.requests, asked.rounds, asked.batch_rounds)


def _play_equal_bytes(asked: Namespace, bench: Bench, texts: Texts) -> None:
    for length in _lengths(asked, texts):
        equal_bytes(bench, asked.equal_bytes, length, asked.batch_rounds)


def _play_resident(asked: Namespace, bench: Bench, texts: Texts) -> None:
    for length in _lengths(asked, texts):
        resident(bench, length, max(asked.requests), asked.rounds)


def _play_needle(asked: Namespace, bench: Bench, texts: Texts) -> None:
    for length in _lengths(asked, texts):
        found = needles(texts.tokenizer, texts.template, asked.needle, length)
        retrieval(bench, [needle.tokens for needle in found], length)


def _needle_cells(asked: Namespace, records: Sequence[Record], texts: Texts) -> list[Cell]:
    return [
        cell
        for length in _lengths(asked, texts)
        for cell in recalls(
            [record for record in records if record["play"].startswith(f"needle-{length}/")],
            needles(texts.tokenizer, texts.template, asked.needle, length),
            texts.tokenizer.decode,
            length,
            asked.weights,
        )
    ]


def _cells(protocol: Protocol) -> Callable[[Namespace, Sequence[Record], Texts], list[Cell]]:
    return lambda asked, records, _: cells(records, protocol, asked.weights)


TURNS = ("turns", "steps")
RUNS: Mapping[str, Run] = {
    "same": Run(
        "", "same", ("batch_prompts", "requests", "rounds", "batch_rounds", *TURNS), _play_same, _cells("same")
    ),
    "equal-bytes": Run(
        "-equal-bytes",
        "equal-bytes",
        ("equal_bytes", "batch_rounds", *TURNS),
        _play_equal_bytes,
        _cells("equal-bytes"),
    ),
    "resident": Run("-resident", "resident", ("requests", "rounds", *TURNS), _play_resident, _cells("resident")),
    "needle": Run("-needle", "needle", ("needle",), _play_needle, _needle_cells),
}
