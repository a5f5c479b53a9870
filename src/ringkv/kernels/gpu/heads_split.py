# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Decode attention of one split of a head that has its own number of entries: the first of `decode_attend_heads`.

B rows of a step, H key-value heads, G query heads each, D head_dim, S splits.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.new_token import attend_new
from ringkv.kernels.gpu.tiles import attend_tiles, entries_per_split, nothing_attended, store_part


@triton.jit(do_not_specialize=["heads", "groups", "usual", "splits", "blocks"])
def heads_split(
    q_at,
    k_at,  # None if another layer has written the new token
    v_at,
    keys_at,
    values_at,
    places_at,  # int32 [S, H, 2]: a head's first entry, and how many more than `live` it has
    slot_at,
    entry_at,
    live_at,
    part_at,
    lse_at,
    used_at,  # int32 [B, H], how many splits are not empty
    q_row,  # strides, in elements
    q_head,
    q_group,
    k_row,
    k_head,
    v_row,
    v_head,
    plane_slot,
    place_slot,
    scale,  # times log2(e)
    heads,
    groups,
    usual,  # splits of a head on average
    splits,  # the most splits of a head
    blocks,  # programs that share the queries of one head
    ROWS: tl.constexpr,  # queries of one program, padded
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH, padded to a power of two
    BLOCK: tl.constexpr,
    UPCAST: tl.constexpr,  # multiply float32 copies: Triton's interpreter cannot multiply bfloat16
):
    split, head, row = tl.program_id(0), tl.program_id(1) // blocks, tl.program_id(2)
    block = tl.program_id(1) % blocks
    live, slot = tl.load(live_at + row), tl.load(slot_at + row).to(tl.int64)
    own = places_at + slot * place_slot + head * 2
    more = tl.load(own + 1)
    length = tl.where(live > 0, live + more, 0)
    # Splits of all heads have as many entries, so that programs take equally long, unless a head would need too many.
    # The last split of a head is half full on average: all heads then have `usual` splits on average.
    even = entries_per_split(2 * live, 2 * usual - 1, BLOCK)
    width = tl.maximum(even, entries_per_split(length, splits, BLOCK))
    if (split == 0) & (block == 0):
        tl.store(used_at + row * heads + head, tl.cdiv(length, tl.maximum(width, 1)))
    first, stop = split * width, tl.minimum((split + 1) * width, length)
    if first >= stop:
        return
    query, column = block * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    real_q = (query < groups)[:, None] & (column < WIDTH)[None, :]
    q = tl.load(q_at + row * q_row + head * q_head + query[:, None] * q_group + column[None, :], mask=real_q, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    plane = slot * plane_slot + tl.load(own).to(tl.int64) * WIDTH  # beyond 2**31 elements in a large cache
    keys, values = keys_at + plane, values_at + plane
    if k_at is None:
        entry = -1
        top, total, acc = nothing_attended(ROWS, COLUMNS)
    else:
        entry = tl.load(entry_at + row) + more
        new_k, new_v = k_at + row * k_row + head * k_head, v_at + row * v_row + head * v_head
        top, total, acc = attend_new(
            q, new_k, new_v, keys, values, entry, split == 0, block == 0, scale, ROWS, WIDTH, COLUMNS
        )
    top, total, acc = attend_tiles(
        q, keys, values, first, stop, entry, entry_at, query, top, total, acc, scale, WIDTH, COLUMNS, BLOCK, 0
    )
    place = (row.to(tl.int64) * heads + head) * splits + split  # beyond 2**31 elements with many slots
    store_part(part_at, lse_at, place, query, top, total, acc, groups, WIDTH, COLUMNS)
