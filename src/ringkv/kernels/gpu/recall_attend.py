"""Decode attention on CUDA over slots whose pages are in pinned host memory, some of them on the device too.

Seven Triton kernels, whose launches depend on no length: they score pages and select them, find places for those that
are not on the device, move them, complete the digest of the new token's page, attend to one split, and merge.

B rows of a step, S slots, H key-value heads, G query heads each, C entries per slot in P pages, R places for pages on
the device, D head_dim.
"""

import torch
import triton
from torch import Tensor

from ringkv.kernels.gpu.decode_attend import Attended, strides, usual_tiling
from ringkv.kernels.gpu.move_pages import move_pages
from ringkv.kernels.gpu.pages_attend import attend, complete, scores, selected
from ringkv.kernels.gpu.place_pages import place_pages
from ringkv.kernels.gpu.tiling import Tiling

MOVERS = 4  # programs that share the pages that one head recalls
PLACE_WARPS, MOVE_WARPS = 1, 4


def decode_attend_recall(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    host_keys: Tensor,
    host_values: Tensor,
    digests: Tensor,
    pins: Tensor,
    counts: Tensor,
    keys: Tensor,
    values: Tensor,
    place_of: Tensor,
    page_in: Tensor,
    prefetched: Tensor,
    fetched: Tensor,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
    cut: Tiling | None = None,
) -> Attended:
    """See `kernels.decode_attend_recall`, whose reference is the contract. `cut` replaces `usual_tiling`.

    The tiling is that of `decode_attend_pages` for slots of C entries, and so are the bits of the result.
    """
    assert host_keys.stride() == host_values.stride()
    assert keys.stride() == values.stride()
    assert counts.stride() == (5, 1)
    assert all(one.is_contiguous() for one in (pins, place_of, page_in, prefetched, fetched))
    assert all(one.stride()[2:] == (q.shape[3], 1) for one in (host_keys, keys))
    q = q if q.stride(-1) == 1 else q.contiguous()
    k, v = (one if one is None or one.stride(-1) == 1 else one.contiguous() for one in (k, v))
    page, cut = host_keys.shape[2] // digests.shape[2], cut or usual_tiling(q, host_keys)
    shares = q.new_empty(*q.shape[:2], digests.shape[2], dtype=torch.float32)
    found = scores(q, digests, counts, slot, live, page, scale)
    pages, lengths = selected(found, pins, counts, slot, live, page, shares)
    placed, moves = place(pages, lengths, shares, slot, live, place_of, page_in, prefetched, fetched, page)
    move(k, v, host_keys, host_values, keys, values, pages, moves, slot, entry, live, place_of, page_in, placed)
    if k is not None:
        complete(k, keys, digests, counts, slot, entry, live, page, place_of)
    return attend(q, k, v, keys, values, placed, lengths, slot, entry, scale, page, cut, place_of)


def prefetch_recall(
    q: Tensor,
    host_keys: Tensor,
    host_values: Tensor,
    digests: Tensor,
    pins: Tensor,
    counts: Tensor,
    keys: Tensor,
    values: Tensor,
    place_of: Tensor,
    page_in: Tensor,
    prefetched: Tensor,
    fetched: Tensor,
    slot: Tensor,
    live: Tensor,
    scale: float,
) -> Tensor:
    """See `kernels.decode_attend_recall.prefetch_recall`. It runs the first four kernels."""
    q, page = q if q.stride(-1) == 1 else q.contiguous(), host_keys.shape[2] // digests.shape[2]
    assert counts.stride() == (5, 1)
    shares = q.new_empty(*q.shape[:2], digests.shape[2], dtype=torch.float32)
    found = scores(q, digests, counts, slot, live, page, scale)
    pages, lengths = selected(found, pins, counts, slot, live, page, shares)
    placed, moves = place(pages, lengths, shares, slot, live, place_of, page_in, prefetched, fetched, page, True)
    hosts = host_keys, host_values
    move(None, None, *hosts, keys, values, pages, moves, slot, slot, live, place_of, page_in, placed, prefetched)
    return moves[-1]


Moves = tuple[Tensor, Tensor, Tensor]
"""int32 [B, H, R] and [B, H, R]: which of the selected pages take which places. int32 [B, H]: how many."""


def place(
    pages: Tensor,
    lengths: Tensor,
    shares: Tensor,
    slot: Tensor,
    live: Tensor,
    place_of: Tensor,
    page_in: Tensor,
    prefetched: Tensor,
    fetched: Tensor,
    page: int,
    is_prefetch: bool = False,
) -> tuple[Tensor, Moves]:
    """Return the places of the selected pages that have one, int32 [B, H, P], and the moves of the others.

    Takes the places of other pages from them in `place_of`, counts in `fetched`, and clears `prefetched`. is_prefetch:
    by predicted queries, before the layer has its own.
    """
    rows, heads, most = pages.shape
    places = page_in.shape[2]
    placed, moves = torch.empty_like(pages), pages.new_empty(rows, heads)
    wanted, freed = (pages.new_empty(rows, heads, places) for _ in range(2))
    padded = triton.next_power_of_2(places)
    place_pages[heads, rows](
        pages,
        lengths,
        shares,
        slot,
        live,
        place_of,
        page_in,
        prefetched,
        fetched,
        placed,
        wanted,
        freed,
        moves,
        heads,
        most,
        places,
        PAGE=page,
        PLACES=padded,
        STEPS=padded.bit_length() - 1,
        PREFETCH=is_prefetch,
        num_warps=PLACE_WARPS,
    )
    return placed, (wanted, freed, moves)


def move(
    k: Tensor | None,
    v: Tensor | None,
    host_keys: Tensor,
    host_values: Tensor,
    keys: Tensor,
    values: Tensor,
    pages: Tensor,
    moves: Moves,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    place_of: Tensor,
    page_in: Tensor,
    placed: Tensor,
    prefetched: Tensor | None = None,
) -> None:
    """Write k, v [B, H, D] to the host, and copy pages from it to their places, in the planes and in the maps.

    prefetched: where places are noted that a prefetch fills.
    """
    (rows, heads, most), width = pages.shape, keys.shape[3]
    move_pages[MOVERS, heads, rows](
        k,
        v,
        host_keys,
        host_values,
        keys,
        values,
        pages,
        *moves,
        slot,
        entry,
        live,
        place_of,
        page_in,
        prefetched,
        placed,
        *strides(k),
        *strides(v),
        *host_keys.stride()[:2],
        *keys.stride()[:2],
        heads,
        most,
        page_in.shape[2],
        PAGE=keys.shape[2] // page_in.shape[2],
        WIDTH=width,
        COLUMNS=triton.next_power_of_2(width),
        num_warps=MOVE_WARPS,
    )
