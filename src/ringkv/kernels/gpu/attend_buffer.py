# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Attention to the plain entries of slots in the format zipcache, its sinks and its buffer, and what that adds to it.

B rows of a step, S slots, H key-value heads, G query heads each, P plain entries, D elements of a vector.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.append_token import CHUNK, COUNTS
from ringkv.kernels.gpu.tiles import attend_tile, load_queries, nothing_attended, store_part

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(
    do_not_specialize=["heads", "queries", "plain", "splits", "blocks"], do_not_specialize_on_alignment=["counts_at"]
)
def attend_buffer(
    q,  # [B, H, G, D], with the strides of a row, a head and a query
    keys_at,
    values_at,
    counts_at,
    rows,
    parts,  # its results are those of split 0
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
    if tl.load(rows.live + row) == 0:
        return
    query = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    queries_of_tile = load_queries(q, row, head, query, queries, WIDTH, COLUMNS, UPCAST)
    of_slot = tl.load(rows.slot + row).to(tl.int64) * heads + head
    keys, values = keys_at + of_slot * plain * WIDTH, values_at + of_slot * plain * WIDTH
    count = tl.load(counts_at + of_slot * COUNTS) + tl.load(counts_at + of_slot * COUNTS + 1)
    softmax = nothing_attended(ROWS, COLUMNS)
    for start in range(0, count, BLOCK):
        entry = start + tl.arange(0, BLOCK)
        softmax = attend_tile(queries_of_tile, keys, values, entry, entry < count, softmax, scale, WIDTH, COLUMNS)
    place = (row.to(tl.int64) * heads + head) * splits
    store_part(parts, place, query, softmax, queries, WIDTH, COLUMNS)


@triton.jit(do_not_specialize=["heads", "queries", "plain"], do_not_specialize_on_alignment=["counts_at"])
def note_attention(
    q,  # [B, H, G, D], with the strides of a row, a head and a query
    keys_at,
    attention_at,  # float32 [S, H, CHUNK]
    counts_at,
    rows,
    lse_at,  # float32 [B, H, G], natural
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
    if tl.load(rows.live + row) == 0:
        return
    of_slot = tl.load(rows.slot + row).to(tl.int64) * heads + head
    first, buffered = tl.load(counts_at + of_slot * COUNTS), tl.load(counts_at + of_slot * COUNTS + 1)
    start = tl.program_id(2) * BLOCK
    if start >= buffered:
        return
    token, column = start + tl.arange(0, BLOCK), tl.arange(0, COLUMNS)
    mask = (token < buffered)[:, None] & (column < WIDTH)[None, :]
    keys = keys_at + (of_slot * plain + first) * WIDTH
    k = tl.load(keys + token[:, None] * WIDTH + column[None, :], mask=mask, other=0.0)
    if UPCAST:
        k = k.to(tl.float32)
    got = tl.zeros((BLOCK,), tl.float32)
    for block in range(0, queries, ROWS):
        query = block + tl.arange(0, ROWS)
        vectors = load_queries(q, row, head, query, queries, WIDTH, COLUMNS, UPCAST)
        lse = tl.load(lse_at + (row * heads + head) * queries + query, mask=query < queries, other=float("inf"))
        scores = tl.dot(k, tl.trans(vectors), input_precision="ieee") * scale
        got += tl.sum(tl.exp2(scores - (lse * LOG2_E)[None, :]), 1)
    attention = attention_at + of_slot * CHUNK + token
    before = tl.load(attention, mask=token < buffered, other=0.0)
    tl.store(attention, before + got / queries, mask=token < buffered)
