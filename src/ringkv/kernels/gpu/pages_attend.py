"""Decode attention on CUDA that reads some pages of a slot: five Triton kernels, whose launches depend on no length.

They complete the digest of the new token's page, score the pages, select them, attend to one split, and merge.

B rows of a step, S slots, H key-value heads, G query heads each, C entries per slot in P pages, D head_dim.
"""

import torch
import triton
from torch import Tensor

from ringkv.kernels.gpu.complete_page import complete_page
from ringkv.kernels.gpu.decode_attend import LOG2_E, Attended, empty_parts, merged, strides, tile, usual_tiling
from ringkv.kernels.gpu.pages_split import pages_split
from ringkv.kernels.gpu.score_pages import score_pages
from ringkv.kernels.gpu.select_pages import select_pages
from ringkv.kernels.gpu.tiling import Tiling
from ringkv.kernels.partial import Partial
from ringkv.kernels.unread_pages import add_unread_pages

SCORED = 32  # pages that a program scores
COMPLETE_WARPS, SCORE_WARPS, MOST_WARPS = 1, 4, 16
SELECTED = 1024  # pages of each warp of a program that selects


def decode_attend_pages(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    keys: Tensor,
    values: Tensor,
    digests: Tensor,
    pins: Tensor,
    counts: Tensor,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
    means: Tensor | None = None,
    cut: Tiling | None = None,
) -> Attended:
    """See `kernels.decode_attend_pages`, whose reference is the contract. `cut` replaces `usual_tiling`.

    keys and values [S, H, C, D] and digests [S, H, P, 2, D] may be views of larger tensors if each head's part is
    contiguous.
    """
    assert keys.stride() == values.stride()
    assert keys.stride()[2:] == (keys.shape[3], 1)
    assert digests.stride()[2:] == (2 * keys.shape[3], keys.shape[3], 1)
    assert counts.stride() == (5, 1)
    assert pins.is_contiguous()
    q = q if q.stride(-1) == 1 else q.contiguous()
    k, v = (one if one is None or one.stride(-1) == 1 else one.contiguous() for one in (k, v))
    page = keys.shape[2] // digests.shape[2]
    if k is not None:
        complete(k, keys, digests, counts, slot, entry, live, page)
    promised = scores(q, digests, counts, slot, live, page, scale)
    pages, lengths = selected(promised, pins, counts, slot, live, page)
    read = attend(q, k, v, keys, values, pages, lengths, slot, entry, scale, page, cut or usual_tiling(q, keys))
    if means is None:
        return read
    seen = as_mask(pages, counts[slot.long(), 0], live, page)
    return add_unread_pages(Partial(*read), q, v, means, None, digests, seen, slot, live, page, scale)


def complete(
    k: Tensor,
    keys: Tensor,
    digests: Tensor,
    counts: Tensor,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    page: int,
    place_of: Tensor | None = None,
) -> None:
    """Write the digests of pages whose last key is in k [B, H, D]; all others of a page are in the slot.

    place_of int32 [S, H, P]: the places of pages of so many entries in `keys`, if they are not in order.
    """
    rows, heads, width = k.shape
    complete_page[heads, rows](
        k,
        keys,
        digests,
        counts,
        slot,
        entry,
        live,
        place_of,
        *k.stride()[:2],
        *keys.stride()[:2],
        *digests.stride()[:2],
        digests.shape[2],
        PAGE=page,
        WIDTH=width,
        COLUMNS=triton.next_power_of_2(width),
        num_warps=COMPLETE_WARPS,
    )


def scores(q: Tensor, digests: Tensor, counts: Tensor, slot: Tensor, live: Tensor, page: int, scale: float) -> Tensor:
    """Return float32 [B, H, G, P] for pages of so many entries, of which a row that reads all has none."""
    (rows, heads, groups, width), pages = q.shape, digests.shape[2]
    found = q.new_empty(rows, heads, groups, pages, dtype=torch.float32)
    score_pages[triton.cdiv(pages, SCORED), heads, rows](
        q,
        digests,
        counts,
        slot,
        live,
        found,
        *q.stride()[:3],
        *digests.stride()[:2],
        scale,
        heads,
        groups,
        pages,
        PAGE=page,
        WIDTH=width,
        COLUMNS=triton.next_power_of_2(width),
        BLOCK=SCORED,
        num_warps=SCORE_WARPS,
    )
    return found


def selected(
    scores: Tensor,
    pins: Tensor,
    counts: Tensor,
    slot: Tensor,
    live: Tensor,
    page: int,
    shares: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the pages that each head reads in order, int32 [B, H, P], and how many live entries these have, [B].

    shares: float32 [B, H, P], which is filled for rows that do not read all of their pages.
    """
    rows, heads, groups, pages = scores.shape
    found = scores.new_empty(rows, heads, pages, dtype=torch.int32)
    lengths = torch.empty_like(live)
    padded = triton.next_power_of_2(pages)
    select_pages[heads, rows](
        scores,
        pins,
        counts,
        slot,
        live,
        shares,
        found,
        lengths,
        heads,
        groups,
        pages,
        PAGE=page,
        PAGES=padded,
        num_warps=max(1, min(MOST_WARPS, padded // SELECTED)),
    )
    return found, lengths


def as_mask(pages: Tensor, most: Tensor, live: Tensor, page: int) -> Tensor:
    """Return bool [B, H, P]: the pages that are read, the first of pages int32 [B, H, P]; at most `most` int32 [B]."""
    index = torch.arange(pages.shape[-1], device=pages.device)
    is_read = index < torch.minimum(most, (live + page - 1) // page)[:, None, None]
    seen = pages.new_zeros(*pages.shape[:2], pages.shape[2] + 1, dtype=torch.bool)
    places = torch.where(is_read, pages, pages.shape[-1]).long()
    return seen.scatter_(-1, places, True)[..., :-1]


def attend(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    keys: Tensor,
    values: Tensor,
    pages: Tensor,
    lengths: Tensor,
    slot: Tensor,
    entry: Tensor,
    scale: float,
    page: int,
    cut: Tiling,
    place_of: Tensor | None = None,
) -> Attended:
    """Write k, v [B, H, D] at `entry`, and attend with q [B, H, G, D] to entries of the pages int32 [B, H, P].

    lengths int32 [B]: so many, from the first page on. place_of int32 [S, H, P]: the places of all pages in the planes,
    if they are not in order; `pages` then has places.
    """
    (rows, heads, groups, width), padded = q.shape, tile(q)
    part, part_lse = empty_parts(q, cut)
    blocks = triton.cdiv(groups, padded.rows)
    pages_split[cut.splits, heads * blocks, rows](
        q,
        k,
        v,
        keys,
        values,
        pages,
        lengths,
        slot,
        entry,
        place_of,
        part,
        part_lse,
        *q.stride()[:3],
        *strides(k),
        *strides(v),
        *keys.stride()[:2],
        scale * LOG2_E,
        heads,
        groups,
        pages.shape[2],
        cut.splits,
        blocks,
        PAGE=page,
        ROWS=padded.rows,
        WIDTH=width,
        COLUMNS=padded.columns,
        BLOCK=cut.block,
        UPCAST=not keys.is_cuda,
        num_warps=cut.warps,
        num_stages=2 * cut.stages - 1,  # half of them load numbers of pages ahead of entries
    )
    return merged(q, part, part_lse, lengths, cut)
