# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment, misc"
"""Decode attention of one split of the encoded entries that a head reads, all of which are written.

Entries are loaded as 16-bit words of several elements, because tensor cores read those transposed. The elements of a
word are multiplied one after the other, so that none has to change its place.

Scores are [BLOCK, ROWS], entries first. Tensor cores take 8 queries then, not 16, and one warp can process a tile: no
warp waits for others, and no lane for queries that do not exist.

B rows of a step, S slots, H key-value heads, Q queries of each, C entries, D elements of a vector in W words, E first
keys that a slot keeps exactly.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["queries"])
def attend_words(
    queries_at,  # rotated queries and dots, as `rotate_queries` wrote them
    keys,  # int16 [S, H, C, W] and ranges [S, H, C], each with the strides of a slot and a head
    values,
    rows,
    index,  # see `readings`
    parts,  # as `store_part` writes them
    scale,  # times log2(e)
    queries,
    READ: tl.constexpr,
    CODE: tl.constexpr,
    ROWS: tl.constexpr,  # queries of one program, padded
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # W, padded to a power of two
    EXACT: tl.constexpr,
    BLOCK: tl.constexpr,
    PACKED: tl.constexpr,
):
    split, row, blocks = tl.program_id(0), tl.program_id(2), tl.cdiv(queries, ROWS)  # programs that share a head
    head, block, heads = tl.program_id(1) // blocks, tl.program_id(1) % blocks, tl.num_programs(1) // blocks
    splits, slot, live = tl.num_programs(0), tl.load(rows.slot + row).to(tl.int64), tl.load(rows.live + row)
    length, width = READ.split(index, row, slot, head, live, splits, BLOCK)
    first, stop = split * width, tl.minimum((split + 1) * width, length)
    if first >= stop:
        return
    PARTS: tl.constexpr = CODE.parts
    WORDS: tl.constexpr = WIDTH // PARTS
    rotated, dots_at = queries_at
    query, word = block * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    is_query = query < queries
    is_element = is_query[:, None] & (word < WORDS)[None, :]
    of_query = (row * heads + head) * queries + query
    q, acc, sums = (), (), tl.zeros((ROWS, COLUMNS), tl.float32)
    for part in tl.static_range(PARTS):
        place = of_query[:, None] * WIDTH + CODE.place(word, part, WIDTH)[None, :]
        of_part = tl.load(rotated + place, mask=is_element, other=0.0)
        sums += of_part.to(tl.float32)
        q += (tl.trans(of_part),)
        acc += (tl.zeros((ROWS, COLUMNS), tl.float32),)
    sums = tl.sum(sums, 1)
    dots = dots_at + of_query * (2 + EXACT)
    factor = tl.load(dots, mask=is_query, other=0.0) * scale
    key_words, key_ranges = READ.start(index, keys[0], slot, head, WORDS), READ.start(index, keys[1], slot, head, 1)
    value_words = READ.start(index, values[0], slot, head, WORDS)
    value_ranges = READ.start(index, values[1], slot, head, 1)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    shift = tl.zeros((ROWS,), tl.float32)
    for start in range(first, stop, BLOCK):
        i = start + tl.arange(0, BLOCK)
        entry = READ.entry(index, row, head, tl.minimum(i, stop - 1), stop)
        k = load_words(key_words, entry, WORDS, COLUMNS)
        products = tl.dot(CODE.element(k, 0, PACKED).to(q[0].dtype), q[0], input_precision="ieee")
        for part in tl.static_range(1, PARTS):
            elements = CODE.element(k, part, PACKED).to(q[part].dtype)
            products = tl.dot(elements, q[part], products, input_precision="ieee")
        scores = CODE.scores(products, tl.load(key_ranges + entry), sums, factor)
        scores = with_first(scores, dots + 2, is_query, start, entry, scale, EXACT)
        scores = tl.where((i < stop)[:, None], scores, float("-inf"))
        ranges = tl.load(value_ranges + entry)
        weights, shrink, unscaled, top, total = next_weights(scores, CODE.scales(ranges), top, total)
        weights = weights.to(q[0].dtype)
        if CODE.shift is not None:
            shift = shift * shrink + CODE.shift(unscaled, weights, ranges)
        weights = tl.trans(weights)
        v, before, acc = load_words(value_words, entry, WORDS, COLUMNS), acc, ()
        for part in tl.static_range(PARTS):
            elements = CODE.element(v, part, PACKED).to(q[part].dtype)
            acc += (tl.dot(weights, elements, before[part] * shrink[:, None], input_precision="ieee"),)
    place = (row.to(tl.int64) * heads + head) * splits + split  # beyond 2**31 elements with many slots
    place = place * queries + query
    for part in tl.static_range(PARTS):
        if CODE.shift is None:
            mean = acc[part] * (1.0 / total)[:, None]
        else:
            mean = (acc[part] + shift[:, None]) / total[:, None]
        tl.store(parts[0] + place[:, None] * WIDTH + CODE.place(word, part, WIDTH)[None, :], mean, mask=is_element)
    common = tl.load(dots + 1, mask=is_query, other=0.0) * scale
    tl.store(parts[1] + place, top + tl.log2(total) + common, mask=is_query)


@triton.jit
def load_words(words_at, at, WORDS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the words of entries `at`, int16 [BLOCK, COLUMNS]; they are 0 from W on."""
    word = tl.arange(0, COLUMNS)
    tile = words_at + at[:, None] * WORDS + word[None, :]
    if WORDS == COLUMNS:
        return tl.load(tile)
    return tl.load(tile, mask=(word < WORDS)[None, :], other=0)


@triton.jit
def with_first(
    scores,  # [BLOCK, ROWS], of the stored keys
    dots,  # pointers to a query's products with first keys, [ROWS]
    is_query,
    start,
    at,  # [BLOCK], entries
    scale,
    EXACT: tl.constexpr,  # E
):
    """Return scores in which those of first keys that are exact replace the stored ones'."""
    if start == 0:
        for first in tl.static_range(EXACT):
            exact = tl.load(dots + first, mask=is_query, other=float("nan"))[None, :]
            scores = tl.where((at == first)[:, None] & (exact == exact), exact * scale, scores)
    return scores


@triton.jit
def next_weights(scores, scales, top, total):
    """Return weights [BLOCK, ROWS], each softmax weight times its value's scale, and the factor [ROWS] of earlier ones.

    Also returns the softmax weights themselves, and the next `top` and `total`. `top` is of weights times the power of
    two in their scale: so weights are at most 2 and fit in float16, however small the values are.
    """
    bits = scales.to(tl.int32, bitcast=True)
    exponent, power = (bits >> 23) - 127, (254 << 23) - (bits & 0x7F800000)  # 2**-exponent
    mantissa = (bits & 0x7FFFFF | 0x3F800000).to(tl.float32, bitcast=True)
    scores += (exponent.to(tl.float32) + (scales - scales))[:, None]  # NaN stays NaN
    highest = tl.maximum(top, tl.max(scores, 0))
    weights = tl.exp2(scores - highest[None, :])
    shrink = tl.exp2(top - highest)
    unscaled = weights * power.to(tl.float32, bitcast=True)[:, None]
    return weights * mantissa[:, None], shrink, unscaled, highest, total * shrink + tl.sum(unscaled, 0)
