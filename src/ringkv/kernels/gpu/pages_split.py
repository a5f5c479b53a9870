# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Decode attention of one split of the pages that a head reads, including the new token.

B rows of a step, S slots, H key-value heads, G query heads each, P pages of a slot, D head_dim.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.new_token import attend_new
from ringkv.kernels.gpu.tiles import attend_tile, entries_per_split, nothing_attended, store_part


@triton.jit(do_not_specialize=["heads", "groups", "pages", "splits", "blocks"])
def pages_split(
    q_at,
    k_at,  # None if another layer has written the new token
    v_at,
    keys_at,
    values_at,
    pages_at,  # int32 [B, H, P]: where the pages are in the planes, in order; see `select_pages`
    lengths_at,  # int32 [B]
    slot_at,
    entry_at,
    place_of_at,  # int32 [S, H, P]: the places of all pages in the planes; None if they are in order
    part_at,
    lse_at,
    q_row,  # strides, in elements
    q_head,
    q_group,
    k_row,
    k_head,
    v_row,
    v_head,
    plane_slot,
    plane_head,
    scale,  # times log2(e)
    heads,
    groups,
    pages,
    splits,
    blocks,  # programs that share the queries of one head
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,  # queries of one program, padded
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH, padded to a power of two
    BLOCK: tl.constexpr,
    UPCAST: tl.constexpr,  # multiply float32 copies: Triton's interpreter cannot multiply bfloat16
):
    split, head, row = tl.program_id(0), tl.program_id(1) // blocks, tl.program_id(2)
    block = tl.program_id(1) % blocks
    length = tl.load(lengths_at + row)
    width = entries_per_split(length, splits, BLOCK)
    first, stop = split * width, tl.minimum((split + 1) * width, length)
    if first >= stop:
        return
    slot = tl.load(slot_at + row).to(tl.int64)
    query, column = block * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    real_q = (query < groups)[:, None] & (column < WIDTH)[None, :]
    q = tl.load(q_at + row * q_row + head * q_head + query[:, None] * q_group + column[None, :], mask=real_q, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    plane = slot * plane_slot + head.to(tl.int64) * plane_head  # beyond 2**31 elements in a large cache
    keys, values = keys_at + plane, values_at + plane
    own = row.to(tl.int64) * heads + head
    if k_at is None:
        entry = -1
        top, total, acc = nothing_attended(ROWS, COLUMNS)
    else:
        entry = tl.load(entry_at + row)
        if place_of_at is not None:
            of_slot = place_of_at + (slot * heads + head) * pages
            entry = tl.load(of_slot + entry // PAGE) * PAGE + entry % PAGE
        new_k, new_v = k_at + row * k_row + head * k_head, v_at + row * v_row + head * v_head
        top, total, acc = attend_new(
            q, new_k, new_v, keys, values, entry, split == 0, block == 0, scale, ROWS, WIDTH, COLUMNS
        )
    for start in range(first, stop, BLOCK):
        i = start + tl.arange(0, BLOCK)
        at = tl.load(pages_at + own * pages + i // PAGE, mask=i < stop, other=0) * PAGE + i % PAGE
        is_read = (i < stop) & (at != entry)
        top, total, acc = attend_tile(
            q, keys, values, at, is_read, None, None, top, total, acc, scale, WIDTH, COLUMNS, 0
        )
    store_part(part_at, lse_at, own * splits + split, query, top, total, acc, groups, WIDTH, COLUMNS)
