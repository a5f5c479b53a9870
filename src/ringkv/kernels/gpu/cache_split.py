# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Attention of one split for T fresh tokens that are not in the cache: the first kernel of `cache_attend`.

B rows of a step, H key-value heads, G query heads each, Q = T * G queries, C entries, D head_dim, S splits. The
cache is not written. A query does not see entries that its token, or a fresh token before it, would overwrite.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.tiles import attend_tiles, entries_per_split, nothing_attended, store_part


@triton.jit(do_not_specialize=["heads", "queries", "groups", "splits", "blocks"])
def cache_split(
    q_at,
    keys_at,
    values_at,
    slot_at,
    holes_at,  # [B, T]
    live_at,
    part_at,
    lse_at,
    q_row,  # strides, in elements
    q_head,
    q_query,
    plane_slot,
    plane_head,
    scale,  # times log2(e)
    heads,
    queries,
    groups,
    splits,
    blocks,  # programs that share the queries of one head
    ROWS: tl.constexpr,  # queries of one program, padded
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH, padded to a power of two
    BLOCK: tl.constexpr,
    HOLES: tl.constexpr,  # T
    UPCAST: tl.constexpr,  # multiply float32 copies: Triton's interpreter cannot multiply bfloat16
):
    split, head, row = tl.program_id(0), tl.program_id(1) // blocks, tl.program_id(2)
    block = tl.program_id(1) % blocks
    live = tl.load(live_at + row)
    width = entries_per_split(live, splits, BLOCK)
    first, stop = split * width, tl.minimum((split + 1) * width, live)
    if first >= stop:
        return
    slot = tl.load(slot_at + row).to(tl.int64)
    query, column = block * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    real_q = (query < queries)[:, None] & (column < WIDTH)[None, :]
    q = tl.load(q_at + row * q_row + head * q_head + query[:, None] * q_query + column[None, :], mask=real_q, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    plane = slot * plane_slot + head.to(tl.int64) * plane_head  # beyond 2**31 elements in a large cache
    keys, values = keys_at + plane, values_at + plane
    top, total, acc = nothing_attended(ROWS, COLUMNS)
    holes, token = holes_at + row * HOLES, query // groups
    top, total, acc = attend_tiles(
        q, keys, values, first, stop, -1, holes, token, top, total, acc, scale, WIDTH, COLUMNS, BLOCK, HOLES
    )
    place = (row.to(tl.int64) * heads + head) * splits + split  # beyond 2**31 elements with many slots
    store_part(part_at, lse_at, place, query, top, total, acc, queries, WIDTH, COLUMNS)
