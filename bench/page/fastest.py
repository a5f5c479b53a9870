"""Which engine is fastest where: the page's first tables."""

from collections.abc import Iterator, Sequence
from operator import attrgetter

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


def fastest(kept: Kept) -> str:
    """A sentence of counts, then a table for decode and one for prefill; or that nothing was measured."""
    decode = [row for model in SHOWN for row in _decode(model, kept.cells.get(model, ()))]
    prefill = [row for model in SHOWN for row in _prefill(model, kept.cells.get(model, ()))]
    if not decode and not prefill:
        return "Not measured: `python -m bench.peers` has left no results."
    tables = (
        _said(decode, "decode"),
        table(("decoding, requests x prompt", *HEAD), [row for _, row in decode]),
        _said(prefill, "prefill"),
        table(("reading one prompt", *HEAD), [row for _, row in prefill]),
    )
    return "\n\n".join((EXPLAINED, *tables))


def _said(rows: Sequence[Row], what: str) -> str:
    first = sum(pair.ratio >= 1 for pair, _ in rows)
    return f"ringkv is fastest in {first} of {len(rows)} {what} workloads at 16-bit weights."


def _places(cells: Sequence[Cell]) -> list[tuple[int, int]]:
    """Prompts and requests that ringkv was run with."""
    ours = [cell for cell in cells if cell.engine in (OURS, FULL) and cell.why is None]
    return sorted(
        {(cell.prompt, cell.requests) for cell in ours if cell.protocol == "same" and cell.weights in SIXTEEN}
    )


def _decode(model: str, cells: Sequence[Cell]) -> Iterator[Row]:
    for prompt, requests in _places(cells):
        yield from _row(
            f"{SHOWN[model]}, {requests} x {prompt:,}", cells, (prompt, requests), decode_ratio, "decode_tps"
        )


def _prefill(model: str, cells: Sequence[Cell]) -> Iterator[Row]:
    for prompt, requests in _places(cells):
        if requests == 1:
            yield from _row(f"{SHOWN[model]}, {prompt:,}", cells, (prompt, 1), prefill_ratio, "prefill_tps")


def _row(name: str, cells: Sequence[Cell], place: tuple[int, int], compare: Compare, rate: str) -> Iterator[Row]:
    """One, or none where no peer was run."""
    speed = attrgetter(rate)
    others = [cell for cell in choose(cells, PEERS, *place) if speed(cell)]
    pair = hardest(choose(cells, (OURS, FULL), *place), others, compare)
    if pair is not None:
        rates = [f"{speed(cell):,.0f}" for cell in (pair.ours, pair.other)]
        shown = (pair.ours.engine, rates[0], pair.other.engine, rates[1], f"{pair.ratio:.2f}x", _families(others))
        yield pair, (name, *shown)


def _families(others: Sequence[Cell]) -> str:
    names = {cell.engine for cell in others}
    return ", ".join(family for family, members in FAMILIES.items() if names.intersection(members))
