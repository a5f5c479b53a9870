# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment, misc"
"""Attention of one split over the entries of chunks in the format zipcache that have 4 bits, or those that have 2.

Scales and minima of a chunk's channels move to the queries, and its factors to the weighted sum, so a tile has entries
of one chunk. Words of 2 bits become words of nibbles, two from one. A nibble n is multiplied as n + OFFSET, and the
middle of the levels is subtracted again, which loses the least.

B rows of a step, S slots, H key-value heads, Q queries each, U or V entries, N chunks, D elements of a vector.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.append_token import CHUNK, COUNTS, SALIENT, held, salient_of
from ringkv.kernels.gpu.attend_words import load_words, next_weights
from ringkv.kernels.gpu.elements import OFFSET, elements_of, low_half, nibble_of

SIZES = "heads", "queries", "entries", "ranges", "first_range", "chunks", "splits", "first_split", "blocks"


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["ranges_at", "counts_at"])
def attend_chunks(
    q,  # [B, H, Q, D], with the strides of a row, a head and a query
    keys_at,  # int16 [S, H, U or V, words]
    channels_at,  # float16 [S, H, N, 4, D]
    values_at,
    factors_at,  # float16 [S, H, N, D]
    ranges_at,  # int32 [S, H, U + V]: scale and minimum in float16
    counts_at,
    rows,
    parts,  # as `store_part` writes them
    scale,  # times log2(e)
    heads,
    queries,
    entries,  # U or V
    ranges,  # U + V
    first_range,  # 0 or U
    chunks,  # N
    splits,  # of all kernels
    first_split,  # of this kernel
    blocks,  # programs that share the queries of one head
    ROWS: tl.constexpr,  # queries of one program, padded
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH / 4 words of nibbles, padded to a power of two
    BLOCK: tl.constexpr,
    BITS: tl.constexpr,
    PRODUCT: tl.constexpr,  # dtype of products
    PACKED: tl.constexpr,
):
    head, row = tl.program_id(1) // blocks, tl.program_id(2)
    if tl.load(rows.live + row) == 0:
        return
    TOKENS: tl.constexpr = SALIENT if BITS == 4 else CHUNK - SALIENT  # entries of a chunk
    TILES: tl.constexpr = (TOKENS + BLOCK - 1) // BLOCK  # of a chunk
    MIDDLE: tl.constexpr = (2**BITS - 1) / 2
    of_slot = tl.load(rows.slot + row).to(tl.int64) * heads + head
    _, _, fixed, later, _ = held(counts_at + of_slot * COUNTS)
    of_fixed = salient_of(fixed)
    if BITS == 2:
        of_fixed = fixed - of_fixed
    fixed_tiles = tl.cdiv(of_fixed, BLOCK)
    tiles = fixed_tiles + later * TILES
    share = tl.cdiv(tiles, tl.num_programs(0))
    start = tl.program_id(0) * share

    query, word = tl.program_id(1) % blocks * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    real = word < WIDTH // 4
    if BITS == 2:
        word = word % 2 * (WIDTH // 8) + word // 2
    element, distance = elements_of(word, WIDTH)
    is_element = (query < queries)[:, None] & real[None, :]
    q_at, q_row, q_head, q_query = q
    of_query = q_at + row * q_row + head * q_head + query[:, None] * q_query + element[None, :]
    WORDS: tl.constexpr = WIDTH * BITS // 16
    keys, values = keys_at + of_slot * entries * WORDS, values_at + of_slot * entries * WORDS
    value_ranges = ranges_at + of_slot * ranges + first_range
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    queries_of_tile, acc = (), ()
    for nibble in tl.static_range(4):
        queries_of_tile += (tl.load(of_query + nibble * distance[None, :], mask=is_element, other=0.0),)
        acc += (tl.zeros((ROWS, COLUMNS), tl.float32),)
    for tile in range(start, tl.minimum(start + share, tiles)):
        is_fixed, after = tile < fixed_tiles, tl.maximum(tile - fixed_tiles, 0)
        chunk = tl.where(is_fixed, 0, 1 + after // TILES)
        first = tl.where(is_fixed, 0, of_fixed + after // TILES * TOKENS)
        stop = tl.where(is_fixed, of_fixed, first + TOKENS)
        at = first + tl.where(is_fixed, tile, after % TILES) * BLOCK + tl.arange(0, BLOCK)
        read = tl.minimum(at, stop - 1)
        channels = channels_at + (of_slot * chunks + chunk) * 4 * WIDTH + (4 - BITS) * WIDTH + element
        factors = factors_at + (of_slot * chunks + chunk) * WIDTH + element
        wide, rest, largest = (), tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
        for nibble in tl.static_range(4):
            folded, middle = _folded(queries_of_tile[nibble], channels + nibble * distance, real, MIDDLE, WIDTH)
            wide += (folded,)
            rest += middle
            largest = tl.maximum(largest, tl.max(tl.abs(folded), 1))
        by = tl.where(largest > 0, largest, 1.0)[:, None]
        k = _load_nibbles(keys, read, WIDTH, COLUMNS, BLOCK, BITS)
        scores, sums = tl.zeros((BLOCK, ROWS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
        for nibble in tl.static_range(4):
            folded = (wide[nibble] / by).to(PRODUCT)
            sums += folded.to(tl.float32)
            elements = nibble_of(k, nibble, PACKED).to(PRODUCT)
            scores = tl.dot(elements, tl.trans(folded), scores, input_precision="ieee")
        sums = tl.sum(sums, 1)
        scores = (scores - (sums * (OFFSET + MIDDLE))[None, :]) * (largest * scale)[None, :] + (rest * scale)[None, :]
        scores = tl.where((at < stop)[:, None], scores, float("-inf"))
        limits = tl.load(value_ranges + read)
        steps = low_half(limits)
        weights, shrink, unscaled, top, total = next_weights(scores, steps, top, total)
        weights = weights.to(PRODUCT)
        middles = unscaled * (low_half(limits >> 16) + steps * MIDDLE)[:, None]
        shift = tl.sum(middles - weights.to(tl.float32) * (OFFSET + MIDDLE), 0)[:, None]
        weights = tl.trans(weights)
        v = _load_nibbles(values, read, WIDTH, COLUMNS, BLOCK, BITS)
        before, acc = acc, ()
        for nibble in tl.static_range(4):
            part = tl.dot(weights, nibble_of(v, nibble, PACKED).to(PRODUCT), input_precision="ieee") + shift
            factor = tl.load(factors + nibble * distance, mask=real, other=0.0).to(tl.float32)
            acc += (before[nibble] * shrink[:, None] + part * factor[None, :],)
    place = (row.to(tl.int64) * heads + head) * splits + first_split + tl.program_id(0)
    place = place * queries + query  # beyond 2**31 elements with many slots
    is_empty = total == 0.0  # a split without entries is merged, too
    by = tl.where(is_empty, 1.0, total)
    for nibble in tl.static_range(4):
        at = parts[0] + place[:, None] * WIDTH + (element + nibble * distance)[None, :]
        tl.store(at, acc[nibble] / by[:, None], mask=is_element)
    tl.store(parts[1] + place, tl.where(is_empty, float("-inf"), top + tl.log2(by)), mask=query < queries)


@triton.jit
def _folded(q, channels, real, MIDDLE: tl.constexpr, WIDTH: tl.constexpr):
    """Return queries times their channels' scales, and what the middles of the channels' ranges add to scores."""
    scale = tl.load(channels, mask=real, other=0.0).to(tl.float32)
    minimum = tl.load(channels + WIDTH, mask=real, other=0.0).to(tl.float32)
    q = q.to(tl.float32)
    return q * scale[None, :], tl.sum(q * (minimum + scale * MIDDLE)[None, :], 1)


@triton.jit
def _load_nibbles(words_at, at, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr):
    """Return words of four nibbles, int16 [BLOCK, COLUMNS]. A word of 2 bits has those of two, half a vector apart."""
    if BITS == 4:
        return load_words(words_at, at, WIDTH // 4, COLUMNS)
    pairs = load_words(words_at, at, WIDTH // 8, COLUMNS // 2)
    return tl.reshape(tl.join(pairs & 0x3333, pairs >> 2 & 0x3333), (BLOCK, COLUMNS))
