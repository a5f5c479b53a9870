# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Attention to the plain entries of slots in the format zipcache, its sinks and its buffer, and what that adds to it.

B rows of a step, S slots, H key-value heads, G query heads each, P plain entries, D elements of a vector.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.append_token import CHUNK, COUNTS
from ringkv.kernels.gpu.tiles import attend_tile, nothing_attended, store_part

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(
    do_not_specialize=["heads", "queries", "plain", "splits", "blocks"], do_not_specialize_on_alignment=["counts_at"]
)
def attend_buffer(
    q_at,
    keys_at,
    values_at,
    counts_at,
    slot_at,
    live_at,
    parts,  # its results are those of split 0
    q_row,  # strides, in elements
    q_head,
    q_query,
    scale,  # times log2(e)
    heads,
    queries,
    plain,
    splits,
    blocks,  # programs that share the queries of one head
    ROWS: tl.constexpr,  # queries of one program, padded
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH, padded to a power of two
    BLOCK: tl.constexpr,
    UPCAST: tl.constexpr,  # multiply float32 copies: Triton's interpreter cannot multiply bfloat16
):
    head, row = tl.program_id(0) // blocks, tl.program_id(1)
    if tl.load(live_at + row) == 0:
        return
    query, column = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    mask = (query < queries)[:, None] & (column < WIDTH)[None, :]
    q = tl.load(q_at + row * q_row + head * q_head + query[:, None] * q_query + column[None, :], mask=mask, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    own = tl.load(slot_at + row).to(tl.int64) * heads + head
    keys, values = keys_at + own * plain * WIDTH, values_at + own * plain * WIDTH
    count = tl.load(counts_at + own * COUNTS) + tl.load(counts_at + own * COUNTS + 1)
    top, total, acc = nothing_attended(ROWS, COLUMNS)
    for start in range(0, count, BLOCK):
        entry = start + tl.arange(0, BLOCK)
        top, total, acc = attend_tile(q, keys, values, entry, entry < count, top, total, acc, scale, WIDTH, COLUMNS)
    place = (row.to(tl.int64) * heads + head) * splits
    store_part(parts, place, query, top, total, acc, queries, WIDTH, COLUMNS)


@triton.jit(do_not_specialize=["heads", "queries", "plain"], do_not_specialize_on_alignment=["counts_at"])
def note_attention(
    q_at,
    keys_at,
    attention_at,  # float32 [S, H, CHUNK]
    counts_at,
    slot_at,
    live_at,
    lse_at,  # float32 [B, H, G], natural
    q_row,  # strides, in elements
    q_head,
    q_query,
    scale,  # times log2(e)
    heads,
    queries,
    plain,
    ROWS: tl.constexpr,  # queries at a time
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,  # keys of one program
    UPCAST: tl.constexpr,
):
    """Add the mean attention of all queries to what each key in the buffer got."""
    head, row = tl.program_id(0), tl.program_id(1)
    if tl.load(live_at + row) == 0:
        return
    own = tl.load(slot_at + row).to(tl.int64) * heads + head
    first, buffered = tl.load(counts_at + own * COUNTS), tl.load(counts_at + own * COUNTS + 1)
    start = tl.program_id(2) * BLOCK
    if start >= buffered:
        return
    token, column = start + tl.arange(0, BLOCK), tl.arange(0, COLUMNS)
    mask = (token < buffered)[:, None] & (column < WIDTH)[None, :]
    keys = keys_at + (own * plain + first) * WIDTH
    k = tl.load(keys + token[:, None] * WIDTH + column[None, :], mask=mask, other=0.0)
    if UPCAST:
        k = k.to(tl.float32)
    got = tl.zeros((BLOCK,), tl.float32)
    for block in range(0, queries, ROWS):
        query = block + tl.arange(0, ROWS)
        is_query = query < queries
        of_query = q_at + row * q_row + head * q_head + query[:, None] * q_query + column[None, :]
        q = tl.load(of_query, mask=is_query[:, None] & (column < WIDTH)[None, :], other=0.0).to(k.dtype)
        lse = tl.load(lse_at + (row * heads + head) * queries + query, mask=is_query, other=float("inf"))
        scores = tl.dot(k, tl.trans(q), input_precision="ieee") * scale
        got += tl.sum(tl.exp2(scores - (lse * LOG2_E)[None, :]), 1)
    attention = attention_at + own * CHUNK + token
    before = tl.load(attention, mask=token < buffered, other=0.0)
    tl.store(attention, before + got / queries, mask=token < buffered)
