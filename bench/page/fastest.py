"""Which engine is fastest where: the page's first tables."""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from bench.page.cells import (
    FAMILIES,
    FULL,
    OURS,
    PEERS,
    Compare,
    Pair,
    choose,
    decode_ratio,
    hardest,
    prefill_ratio,
)
from bench.page.kept import SIXTEEN, Kept
from bench.page.models import SHOWN
from bench.peers.cells import Cell
from bench.report import table

Row = tuple[Pair, tuple[str, ...]]  # and what the table shows of it
HEAD = ("ringkv's", "tokens/s", "hardest peer", "tokens/s", "ringkv over it", "run beside it")
EXPLAINED = (
    "Of ringkv's two settings the faster counts; the hardest peer is the one that it is least ahead of. Both are of\n"
    "one run. Not every peer was in every run: the last column names those that were beside it."
)


class Bits(NamedTuple):
    """Weights that a run was made with: what cells of ours call them, and what a reader should know."""

    name: str
    ours: Sequence[str]
    note: str = ""


OWN_KIND = "Weights of fewer bits are each engine's own kind; vLLM and transformers keep 16."
PRECISIONS = (Bits("16-bit", SIXTEEN), Bits("8-bit", ("int8",), OWN_KIND), Bits("4-bit", ("int4",), OWN_KIND))


def fastest(kept: Kept) -> str:
    """For each precision a sentence of counts and a table for decode and for prefill; or that nothing was measured."""
    tables = [part for bits in PRECISIONS for part in _tables(kept, bits)]
    if not tables:
        return "Not measured: `python -m bench.peers` has left no results."
    return "\n\n".join((EXPLAINED, *tables))


def _tables(kept: Kept, bits: Bits) -> Iterator[str]:
    decode = [row for model in SHOWN for row in _decode(model, kept.cells.get(model, ()), bits)]
    prefill = [row for model in SHOWN for row in _prefill(model, kept.cells.get(model, ()), bits)]
    if not decode and not prefill:
        return
    if bits.note:
        yield bits.note
    yield _said(decode, "decode", bits)
    yield table(("decoding, requests x prompt", *HEAD), [row for _, row in decode])
    yield _said(prefill, "prefill", bits)
    yield table(("reading one prompt", *HEAD), [row for _, row in prefill])


def _said(rows: Sequence[Row], what: str, bits: Bits) -> str:
    first = sum(pair.ratio >= 1 for pair, _ in rows)
    return f"ringkv is fastest in {first} of {len(rows)} {what} workloads at {bits.name} weights."


def _places(cells: Sequence[Cell], bits: Bits) -> list[tuple[int, int]]:
    """Prompts and requests that ringkv was run with."""
    ours = [cell for cell in cells if cell.engine in (OURS, FULL) and cell.why is None and cell.weights in bits.ours]
    return sorted({(cell.prompt, cell.requests) for cell in ours if cell.protocol == "same"})


def _decode(model: str, cells: Sequence[Cell], bits: Bits) -> Iterator[Row]:
    for prompt, requests in _places(cells, bits):
        name = f"{SHOWN[model]}, {requests} x {prompt:,}"
        yield from _row(name, cells, (prompt, requests), bits, decode_ratio, "decode_tps")


def _prefill(model: str, cells: Sequence[Cell], bits: Bits) -> Iterator[Row]:
    for prompt, requests in _places(cells, bits):
        if requests == 1:
            yield from _row(f"{SHOWN[model]}, {prompt:,}", cells, (prompt, 1), bits, prefill_ratio, "prefill_tps")


def _row(
    name: str, cells: Sequence[Cell], place: tuple[int, int], bits: Bits, compare: Compare, rate: str
) -> Iterator[Row]:
    """One, or none where no peer was run beside us."""
    speed = attrgetter(rate)
    ours = choose(cells, (OURS, FULL), *place, weights=bits.ours)
    runs = {cell.run for cell in ours}
    others = [cell for cell in choose(cells, PEERS, *place, weights=None) if speed(cell) and cell.run in runs]
    pair = hardest(ours, others, compare)
    if pair is not None:
        rates = [f"{speed(cell):,.0f}" for cell in (pair.ours, pair.other)]
        shown = (pair.ours.engine, rates[0], pair.other.engine, rates[1], f"{pair.ratio:.2f}x", _families(others))
        yield pair, (name, *shown)


def _families(others: Sequence[Cell]) -> str:
    names = {cell.engine for cell in others}
    return ", ".join(family for family, members in FAMILIES.items() if names.intersection(members))
