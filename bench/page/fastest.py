"""Which engine is fastest where: the page's first tables."""

from collections.abc import Iterator, Sequence

from bench.page.cells import FULL, OURS, PEERS, choose, decode_ratio, fastest_prefill, most_tokens, prefill_ratio
from bench.page.kept import SIXTEEN, Kept
from bench.page.models import SHOWN
from bench.peers.cells import Cell
from bench.report import table

WHERE = "same"


def fastest(kept: Kept) -> str:
    """A sentence of counts, then a table for decode and one for prefill; or that nothing was measured."""
    decode = [row for model in SHOWN for row in _decode(model, kept.cells.get(model, ()))]
    prefill = [row for model in SHOWN for row in _prefill(model, kept.cells.get(model, ()))]
    if not decode and not prefill:
        return "Not measured: `python -m bench.peers` has left no results."
    head = ("several requests decoding", "fastest", "tokens/s", "ringkv", "fastest peer", "tokens/s", "ringkv over it")
    again = ("one prompt being read", "fastest", "tokens/s", "ringkv", "fastest peer", "tokens/s", "ringkv over it")
    parts = (_said(decode, "decode"), table(head, decode), _said(prefill, "prefill"), table(again, prefill))
    return "\n\n".join((f"Peers that were run: {_beside(kept)}. Of ringkv's two settings the faster counts.", *parts))


def _beside(kept: Kept) -> str:
    found = {
        cell.engine for cells in kept.cells.values() for cell in cells if cell.protocol == WHERE and cell.decode_tps
    }
    return ", ".join(name for name in PEERS if name in found) or "none"


def _said(rows: Sequence[tuple[str, ...]], what: str) -> str:
    first = sum(row[1] in (OURS, FULL) for row in rows)
    return f"ringkv is fastest in {first} of {len(rows)} {what} workloads at 16-bit weights."


def _places(cells: Sequence[Cell]) -> list[tuple[int, int]]:
    figures = [cell for cell in cells if cell.why is None]
    return sorted(
        {(cell.prompt, cell.requests) for cell in figures if cell.protocol == WHERE and cell.weights in SIXTEEN}
    )


def _decode(model: str, cells: Sequence[Cell]) -> Iterator[tuple[str, ...]]:
    for prompt, requests in _places(cells):
        ours, peer = (most_tokens(choose(cells, names, prompt, requests)) for names in ((OURS, FULL), PEERS))
        rates = [cell.decode_tps if cell else None for cell in (ours, peer)]
        yield _row(_place(model, prompt, requests), ours, peer, rates, decode_ratio(ours, peer))


def _prefill(model: str, cells: Sequence[Cell]) -> Iterator[tuple[str, ...]]:
    for prompt, requests in _places(cells):
        if requests == 1:
            ours, peer = (fastest_prefill(choose(cells, names, prompt, 1)) for names in ((OURS, FULL), PEERS))
            rates = [cell.prefill_tps if cell else None for cell in (ours, peer)]
            yield _row(_place(model, prompt, 1), ours, peer, rates, prefill_ratio(ours, peer))


def _place(model: str, prompt: int, requests: int) -> str:
    return f"{SHOWN[model]}, {requests} x {prompt:,}"


def _row(
    place: str, ours: Cell | None, peer: Cell | None, rates: Sequence[float | None], ratio: float | None
) -> tuple[str, ...]:
    shown = [f"{rate:,.0f}" if rate else "?" for rate in rates]
    names = [cell.engine if cell else "?" for cell in (ours, peer)]
    winner = max(range(2), key=lambda one: rates[one] or 0.0)
    return (place, names[winner], shown[winner], shown[0], names[1], shown[1], f"{ratio:.2f}x" if ratio else "?")
