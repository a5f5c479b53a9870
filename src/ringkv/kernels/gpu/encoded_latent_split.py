# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Decode attention of one split over encoded latents, except the exact ones: the third kernel of `encoded_latents`.

B rows of a step, G query heads, C entries, D elements of an entry, E first latents, S splits.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.exact_latents import exact_bits
from ringkv.kernels.gpu.latent_tiles import attend_latents, store_latent_part
from ringkv.kernels.gpu.tiles import entries_per_split


@triton.jit(do_not_specialize=["groups", "splits"])
def encoded_latent_split(
    q_at,  # as `rotate_queries` wrote them
    dots_at,
    latents_at,  # int16 [S, 1, C, words]
    ranges_at,  # [S, 1, C, groups], as TILE takes them
    centers_at,  # float32 [S, 1, D + E D]
    slot_at,
    live_at,
    part_at,  # as `store_latent_part` writes them
    lse_at,
    plane_slot,  # strides, in words
    range_slot,  # and of ranges
    center_slot,
    scale,  # times log2(e)
    groups,
    splits,
    ROWS: tl.constexpr,  # queries of one program, padded
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    REST: tl.constexpr,
    EXACT: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,  # of `encoded_latent_tiles`
    PACKED: tl.constexpr,
):
    split, block, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    live = tl.load(live_at + row)
    width = entries_per_split(live, splits, BLOCK)
    first, stop = split * width, tl.minimum((split + 1) * width, live)
    if first >= stop:
        return
    query, column, rest = block * ROWS + tl.arange(0, ROWS), tl.arange(0, FIRST), FIRST + tl.arange(0, REST)
    is_query = query < groups
    queries = q_at + (row * groups + query)[:, None] * WIDTH
    q_first = tl.load(queries + column[None, :], mask=is_query[:, None], other=0.0)
    q_rest = tl.load(queries + rest[None, :], mask=is_query[:, None] & (rest < WIDTH)[None, :], other=0.0)
    if not PACKED:  # Triton's interpreter cannot multiply bfloat16
        q_first, q_rest = q_first.to(tl.float32), q_rest.to(tl.float32)
    largest = tl.load(dots_at + (row * groups + query) * (2 + EXACT), mask=is_query, other=0.0)
    slot = tl.load(slot_at + row).to(tl.int64)  # beyond 2**31 elements in a large cache
    top, total, acc_first, acc_rest = attend_latents(
        q_first,
        q_rest,
        latents_at + slot * plane_slot,
        ranges_at + slot * range_slot,
        first,
        stop,
        -1,
        exact_bits(centers_at + slot * center_slot + WIDTH, WIDTH, EXACT),
        None,
        tl.full((ROWS,), float("-inf"), tl.float32),
        tl.zeros((ROWS,), tl.float32),
        tl.zeros((ROWS, FIRST), tl.float32),
        tl.zeros((ROWS, REST), tl.float32),
        (largest * scale)[:, None],
        WIDTH,
        FIRST,
        REST,
        BLOCK,
        TILE,
        q_at.dtype.element_ty,
        PACKED,
    )
    at = (row.to(tl.int64) * splits + split) * groups + query  # beyond 2**31 elements with many slots
    store_latent_part(part_at, lse_at, at, is_query, top, total, acc_first, acc_rest, WIDTH, FIRST, REST)
