# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Helpers of the decode attention kernels: an online softmax over one split of a slot's entries, tile by tile.

D head_dim. A program's queries are rows of one tensor-core tile, so each key and value is read once for all of them.
Online softmax: Milakov and Gimelshein, arXiv 1805.02867. Splits along the keys: Flash-Decoding, Dao et al., 2023.
"""

import triton
import triton.language as tl


@triton.jit
def vector_of(vectors, first, second):
    """Return the pointer to a vector: `vectors` are a pointer, and the strides of two dimensions."""
    at, of_first, of_second = vectors
    return at + first * of_first + second * of_second


@triton.jit
def entries_per_split(live, splits, BLOCK: tl.constexpr):
    """Return the entries per split, in whole blocks; the last split that is not empty may have fewer."""
    return tl.cdiv(tl.cdiv(live, splits), BLOCK) * BLOCK


@triton.jit
def load_queries(q, row, head, query, queries, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, UPCAST: tl.constexpr):
    """Return queries of a head, [ROWS, COLUMNS]; q is [B, H, G, D], with the strides of a row, a head and a query."""
    q_at, q_row, q_head, q_query = q
    column = tl.arange(0, COLUMNS)
    of_query = q_at + row * q_row + head * q_head + query[:, None] * q_query + column[None, :]
    vectors = tl.load(of_query, mask=(query < queries)[:, None] & (column < WIDTH)[None, :], other=0.0)
    return vectors.to(tl.float32) if UPCAST else vectors


@triton.jit
def attend_tile(
    q,  # [ROWS, COLUMNS]
    keys,  # pointers to entry 0 of one slot and head
    values,
    entry,  # [BLOCK], the entries of a tile
    is_read,  # [BLOCK]
    softmax,  # so far: maximum [ROWS], sum [ROWS], weighted values [ROWS, COLUMNS]
    scale,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Continue the softmax over a tile. Exponentials are powers of two: `scale` includes log2(e)."""
    top, total, acc = softmax
    column = tl.arange(0, COLUMNS)
    mask = is_read[:, None] & (column < WIDTH)[None, :]
    tile = entry[:, None] * WIDTH + column[None, :]
    k = tl.load(keys + tile, mask=mask, other=0.0)
    scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * scale
    scores = tl.where(is_read[None, :], scores, float("-inf"))
    highest = tl.maximum(top, tl.max(scores, 1))
    against = tl.where(highest == float("-inf"), 0.0, highest)  # if a query sees no entry of the tile
    weights = tl.exp2(scores - against[:, None])
    shrink = tl.exp2(top - against)
    total = total * shrink + tl.sum(weights, 1)
    v = tl.load(values + tile, mask=mask, other=0.0)
    acc = tl.dot(weights.to(v.dtype).to(q.dtype), v.to(q.dtype), acc * shrink[:, None], input_precision="ieee")
    return highest, total, acc


@triton.jit
def nothing_attended(ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the softmax before any entry: maximum [ROWS], sum [ROWS], weighted values [ROWS, COLUMNS]."""
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    return top, tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)


@triton.jit
def store_part(
    parts,  # float32 [B, H, S, Q, D], normalised; float32 [B, H, S, Q], log2 of the sum of exponentials
    place,  # (row * H + head) * S + split
    query,  # [ROWS]
    softmax,  # as `attend_tile` returns it
    queries,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write the partial results of one split for queries of [0, queries)."""
    top, total, acc = softmax
    column = tl.arange(0, COLUMNS)
    is_real = query < queries
    is_empty = total == 0.0
    part = acc / tl.where(is_empty, 1.0, total)[:, None]
    at = place * queries + query
    tl.store(parts[0] + at[:, None] * WIDTH + column[None, :], part, mask=is_real[:, None] & (column < WIDTH)[None, :])
    lse = tl.where(is_empty, float("-inf"), top + tl.log2(tl.where(is_empty, 1.0, total)))
    tl.store(parts[1] + at, lse, mask=is_real)
