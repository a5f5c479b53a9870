"""Which engine is fastest where: the page's first tables."""

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from bench.page.cells import (
    FAMILIES,
    FULL,
    KEEP_ALL,
    OURS,
    PEERS,
    Compare,
    Pair,
    choose,
    closest,
    decode_ratio,
    prefill_ratio,
)
from bench.page.kept import SIXTEEN, Kept
from bench.page.models import SHOWN
from bench.peers.cells import Cell
from bench.report import table

HEAD = ("ringkv's", "tokens/s", "closest peer", "tokens/s", "ringkv over it", "run beside it")
EXPLAINED = (
    "Of ringkv's two settings the faster counts, so one that keeps a quarter may stand beside one that keeps all; the\n"
    "second count of each sentence is of ringkv and peers that all keep everything. The closest peer is the one that\n"
    "ringkv is least ahead of. Speeds are medians of all turns, ratios medians of the turns that both took one after\n"
    "the other, so the two can differ. Both engines are of one run. Not every peer was in every run: the last column\n"
    "names those that were."
)
LEVEL = 0.05  # ratios this near 1 are no lead


class Bits(NamedTuple):
    """Weights that a run was made with: what cells of ours call them, and what a reader should know."""

    name: str
    ours: Sequence[str]
    note: str = ""


class Work(NamedTuple):
    """What is compared. rate: the cells' field of tokens a second."""

    name: str
    heading: str
    compare: Compare
    rate: str


class Row(NamedTuple):
    """One workload of a table. kept_all: the closest pair of which both keep everything."""

    closest: Pair
    kept_all: Pair | None
    shown: tuple[str, ...]


DECODE = Work("decode", "decoding, requests x prompt", decode_ratio, "decode_tps")
PREFILL = Work("prefill", "reading one prompt", prefill_ratio, "prefill_tps")
OWN_KIND = "Weights of fewer bits are each engine's own kind; vLLM and transformers keep 16."
PRECISIONS = (Bits("16-bit", SIXTEEN), Bits("8-bit", ("int8",), OWN_KIND), Bits("4-bit", ("int4",), OWN_KIND))


def fastest(kept: Kept) -> str:
    """For each precision a sentence of counts and a table for decode and for prefill; or that nothing was measured."""
    tables = [part for bits in PRECISIONS for part in _tables(kept, bits)]
    if not tables:
        return "Not measured: `python -m bench.peers` has left no results."
    return "\n\n".join((EXPLAINED, *tables))


def brief(kept: Kept) -> str:
    """Decode at 16 bits in short: all workloads counted, and each model's lightest and heaviest; "" without any."""
    bits = PRECISIONS[0]
    by_model = [list(_rows({model: kept.cells.get(model, ())}, bits, DECODE)) for model in SHOWN]
    ends = [row for rows in by_model if rows for row in (rows[0], *rows[1:][-1:])]
    if not ends:
        return ""
    said = _said([row for rows in by_model for row in rows], DECODE, bits)
    return f"{said}\n\n{table((DECODE.heading, *HEAD), [row.shown for row in ends])}"


def _tables(kept: Kept, bits: Bits) -> Iterator[str]:
    found = {work: list(_rows(kept.cells, bits, work)) for work in (DECODE, PREFILL)}
    if not any(found.values()):
        return
    if bits.note:
        yield bits.note
    for work, rows in found.items():
        yield _said(rows, work, bits)
        yield table((work.heading, *HEAD), [row.shown for row in rows])


def _said(rows: Sequence[Row], work: Work, bits: Bits) -> str:
    kept_all = [row.kept_all for row in rows if row.kept_all]
    text = f"At {bits.name} weights ringkv is {_counted([row.closest for row in rows])} {work.name} workloads"
    return f"{text}; keeping everything, {_counted(kept_all)}." if kept_all else f"{text}."


def _counted(pairs: Sequence[Pair]) -> str:
    level = sum(abs(pair.ratio - 1) <= LEVEL for pair in pairs)
    ahead = f"ahead in {sum(pair.ratio > 1 + LEVEL for pair in pairs)}"
    return f"{ahead}{f' and level (within {LEVEL:.0%}) in {level}' if level else ''} of {len(pairs)}"


def _rows(cells: Mapping[str, Sequence[Cell]], bits: Bits, work: Work) -> Iterator[Row]:
    for model in SHOWN:
        for prompt, requests in _places(cells.get(model, ()), bits):
            if work is PREFILL and requests > 1:
                continue
            what = f"{requests} x {prompt:,}" if work is DECODE else f"{prompt:,}"
            yield from _row(f"{SHOWN[model]}, {what}", cells[model], (prompt, requests), bits, work)


def _places(cells: Sequence[Cell], bits: Bits) -> list[tuple[int, int]]:
    """Prompts and requests that ringkv was run with."""
    ours = [cell for cell in cells if cell.engine in (OURS, FULL) and cell.why is None and cell.weights in bits.ours]
    return sorted({(cell.prompt, cell.requests) for cell in ours if cell.protocol == "same"})


def _row(name: str, cells: Sequence[Cell], place: tuple[int, int], bits: Bits, work: Work) -> Iterator[Row]:
    """One, or none where no peer was run beside us."""
    speed = attrgetter(work.rate)
    ours = choose(cells, (OURS, FULL), *place, weights=bits.ours)
    runs = {cell.run for cell in ours}
    others = [cell for cell in choose(cells, PEERS, *place, weights=None) if speed(cell) and cell.run in runs]
    pair = closest(ours, others, work.compare)
    if pair is None:
        return
    full = [cell for cell in ours if cell.engine == FULL]
    whole = [cell for cell in others if cell.engine in KEEP_ALL]
    rates = [_rate(speed(cell)) for cell in (pair.ours, pair.other)]
    shown = (pair.ours.engine, rates[0], pair.other.engine, rates[1], f"{pair.ratio:.2f}x", _families(others))
    yield Row(pair, closest(full, whole, work.compare), (name, *shown))


def _rate(tokens: float) -> str:
    return f"{tokens:,.0f}" if tokens >= 100 else f"{tokens:.1f}"


def _families(others: Sequence[Cell]) -> str:
    names = {cell.engine for cell in others}
    return ", ".join(family for family, members in FAMILIES.items() if names.intersection(members))
