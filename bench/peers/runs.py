"""runs: the four kinds of measurement, each with its trials and the cells made from them."""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bench.peers.analyse import cells
from bench.peers.cells import PeerCell, Protocol
from bench.peers.journal import TrialRecord
from bench.peers.needle import ANSWER, needles, recalls
from bench.peers.protocols import Bench, Lengths, equal_bytes, resident, retrieval, same
from bench.peers.trial import Schedule
from bench.peers.workload import fitting
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.tokenizer import Tokenizer


class PromptSource(NamedTuple):
    """The tokenizer and chat template that make prompts, and the model's context in tokens."""

    tokenizer: Tokenizer
    template: ChatTemplate
    context: int


class Run(NamedTuple):
    """A kind of measurement.

    suffix: of the journal's name. fields: the arguments that identify it. measure: runs the trials.
    cells: makes cells from the records.
    """

    suffix: str
    protocol: Protocol
    fields: tuple[str, ...]
    measure: Callable[[Namespace, Bench, PromptSource], None]
    cells: Callable[[Namespace, Sequence[TrialRecord], PromptSource], list[PeerCell]]


def chosen(args: Namespace) -> Run:
    requested = {"equal-bytes": args.equal_bytes, "resident": args.resident, "needle": args.needle, "same": True}
    return RUNS[next(name for name, is_requested in requested.items() if is_requested)]


def schedule(args: Namespace) -> Schedule:
    if args.needle:
        return Schedule(1, ANSWER, args.timeout)
    return Schedule(args.turns, args.steps, args.timeout)


def _lengths(args: Namespace, texts: PromptSource) -> list[int]:
    return _fitting(args.prompts, texts)


def _fitting(lengths: Sequence[int], texts: PromptSource) -> list[int]:
    return sorted({fitting(length, texts.context) for length in lengths})


def _measure_same(args: Namespace, bench: Bench, texts: PromptSource) -> None:
    lengths = Lengths(_lengths(args, texts), _fitting(args.batch_prompts, texts))
    same(bench, lengths, args.requests, args.rounds, args.batch_rounds)


def _measure_equal_bytes(args: Namespace, bench: Bench, texts: PromptSource) -> None:
    for length in _lengths(args, texts):
        equal_bytes(bench, args.equal_bytes, length, args.batch_rounds)


def _measure_resident(args: Namespace, bench: Bench, texts: PromptSource) -> None:
    for length in _lengths(args, texts):
        resident(bench, length, max(args.requests), args.rounds)


def _measure_needle(args: Namespace, bench: Bench, texts: PromptSource) -> None:
    for length in _lengths(args, texts):
        found = needles(texts.tokenizer, texts.template, args.needle, length)
        retrieval(bench, [needle.tokens for needle in found], length)


def _needle_cells(args: Namespace, records: Sequence[TrialRecord], texts: PromptSource) -> list[PeerCell]:
    return [
        cell
        for length in _lengths(args, texts)
        for cell in recalls(
            [record for record in records if record["trial"].startswith(f"needle-{length}/")],
            needles(texts.tokenizer, texts.template, args.needle, length),
            texts.tokenizer.decode,
            length,
            args.weights,
        )
    ]


def _cells(protocol: Protocol) -> Callable[[Namespace, Sequence[TrialRecord], PromptSource], list[PeerCell]]:
    return lambda args, records, _: cells(records, protocol, args.weights)


TURNS = ("turns", "steps")
RUNS: Mapping[str, Run] = {
    "same": Run(
        "", "same", ("batch_prompts", "requests", "rounds", "batch_rounds", *TURNS), _measure_same, _cells("same")
    ),
    "equal-bytes": Run(
        "-equal-bytes",
        "equal-bytes",
        ("equal_bytes", "batch_rounds", *TURNS),
        _measure_equal_bytes,
        _cells("equal-bytes"),
    ),
    "resident": Run("-resident", "resident", ("requests", "rounds", *TURNS), _measure_resident, _cells("resident")),
    "needle": Run("-needle", "needle", ("needle",), _measure_needle, _needle_cells),
}
