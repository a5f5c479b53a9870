# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Decode attention of one split of the plain entries that a head reads, including the new token.

Encoded entries have `attend_words`: their words are loaded as they are and multiplied element after element, with
entries instead of queries as the rows of a product.

B rows of a step, S slots, H key-value heads, Q queries of each, C entries, D elements of a vector.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.tiles import attend_tile, load_queries, nothing_attended, store_part, vector_of


@triton.jit(do_not_specialize=["queries"])
def attend_split(
    q,  # [B, H, Q, D], with the strides of a row, a head and a query
    new,  # keys and values [B, H, D], with the strides of a row and a head; None if another layer has written them
    planes,  # keys and values [S, H, C, D], with the strides of a slot and a head
    rows,
    index,  # see `readings`
    parts,  # as `store_part` writes them
    scale,  # times log2(e)
    queries,
    READ: tl.constexpr,
    ROWS: tl.constexpr,  # queries of one program, padded
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH, padded to a power of two
    BLOCK: tl.constexpr,
    UPCAST: tl.constexpr,  # multiply float32 copies: Triton's interpreter cannot multiply bfloat16
):
    split, row, blocks = tl.program_id(0), tl.program_id(2), tl.cdiv(queries, ROWS)  # programs that share a head
    head, block, heads = tl.program_id(1) // blocks, tl.program_id(1) % blocks, tl.num_programs(1) // blocks
    splits, slot, live = tl.num_programs(0), tl.load(rows.slot + row).to(tl.int64), tl.load(rows.live + row)
    length, width = READ.split(index, row, slot, head, live, splits, BLOCK)
    first, stop = split * width, tl.minimum((split + 1) * width, length)
    if first >= stop:
        return
    query = block * ROWS + tl.arange(0, ROWS)
    queries_of_tile = load_queries(q, row, head, query, queries, WIDTH, COLUMNS, UPCAST)
    keys = READ.start(index, planes[0], slot, head, WIDTH)
    values = READ.start(index, planes[1], slot, head, WIDTH)
    if new is None:
        newest = -1
        softmax = nothing_attended(ROWS, COLUMNS)
    else:
        newest = READ.newest(index, slot, head, tl.load(rows.entry + row))
        new_k, new_v = vector_of(new[0], row, head), vector_of(new[1], row, head)
        softmax = attend_new(
            queries_of_tile, new_k, new_v, keys, values, newest, split == 0, block == 0, scale, ROWS, WIDTH, COLUMNS
        )
    for start in range(first, stop, BLOCK):
        i = start + tl.arange(0, BLOCK)
        entry = READ.entry(index, row, head, i, stop)
        is_read = (i < stop) & (entry != newest)
        softmax = attend_tile(queries_of_tile, keys, values, entry, is_read, softmax, scale, WIDTH, COLUMNS)
    place = (row.to(tl.int64) * heads + head) * splits + split  # beyond 2**31 elements with many slots
    store_part(parts, place, query, softmax, queries, WIDTH, COLUMNS)


@triton.jit
def attend_new(
    q,  # [ROWS, COLUMNS]
    k_at,  # the new token's [D]
    v_at,
    keys,  # pointers to entry 0 of one slot and head
    values,
    entry,  # that the token takes
    is_first,  # of the splits
    is_writer,  # of the programs of a split
    scale,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Return the softmax of the new token in the first split, and that of nothing in others; see `attend_tiles`.

    All tiles must skip its entry, so that no program reads it while it is written, or multiplies by its old content,
    which may be NaN.
    """
    column = tl.arange(0, COLUMNS)
    real = column < WIDTH
    new_k, new_v = tl.load(k_at + column, mask=real, other=0.0), tl.load(v_at + column, mask=real, other=0.0)
    is_written = real & is_first & is_writer
    tl.store(keys + entry * WIDTH + column, new_k, mask=is_written)
    tl.store(values + entry * WIDTH + column, new_v, mask=is_written)
    score = tl.sum(q.to(tl.float32) * new_k.to(tl.float32)[None, :], 1) * scale
    top = tl.where(is_first, score, float("-inf"))
    total = tl.where(is_first, tl.full((ROWS,), 1.0, tl.float32), 0.0)
    acc = tl.where(is_first, tl.zeros((ROWS, COLUMNS), tl.float32) + new_v.to(tl.float32)[None, :], 0.0)
    return top, total, acc
