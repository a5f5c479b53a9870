# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Decode attention of one split, including the new token: the first kernel of `decode_attend`.

B rows of a step, H key-value heads, G query heads each, C entries, D head_dim, S splits.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.new_token import attend_new
from ringkv.kernels.gpu.tiles import attend_tiles, entries_per_split, store_part


@triton.jit(do_not_specialize=["heads", "groups", "splits", "blocks"])
def attend_split(
    q_at,
    k_at,
    v_at,
    keys_at,
    values_at,
    slot_at,
    entry_at,
    live_at,
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
    splits,
    blocks,  # programs that share the queries of one head
    ROWS: tl.constexpr,  # queries of one program, padded
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH, padded to a power of two
    BLOCK: tl.constexpr,
    UPCAST: tl.constexpr,  # multiply float32 copies: Triton's interpreter cannot multiply bfloat16
):
    split, head, row = tl.program_id(0), tl.program_id(1) // blocks, tl.program_id(2)
    block = tl.program_id(1) % blocks
    live = tl.load(live_at + row)
    width = entries_per_split(live, splits, BLOCK)
    first, stop = split * width, tl.minimum((split + 1) * width, live)
    if first >= stop:
        return
    entry, slot = tl.load(entry_at + row), tl.load(slot_at + row).to(tl.int64)
    query, column = block * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    real_q = (query < groups)[:, None] & (column < WIDTH)[None, :]
    q = tl.load(q_at + row * q_row + head * q_head + query[:, None] * q_group + column[None, :], mask=real_q, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    plane = slot * plane_slot + head.to(tl.int64) * plane_head  # beyond 2**31 elements in a large cache
    keys, values = keys_at + plane, values_at + plane

    new_k, new_v = k_at + row * k_row + head * k_head, v_at + row * v_row + head * v_head
    top, total, acc = attend_new(
        q, new_k, new_v, keys, values, entry, split == 0, block == 0, scale, ROWS, WIDTH, COLUMNS
    )
    top, total, acc = attend_tiles(
        q, keys, values, first, stop, entry, entry_at, query, top, total, acc, scale, WIDTH, COLUMNS, BLOCK, 0
    )
    place = (row.to(tl.int64) * heads + head) * splits + split  # beyond 2**31 elements with many slots
    store_part(part_at, lse_at, place, query, top, total, acc, groups, WIDTH, COLUMNS)
