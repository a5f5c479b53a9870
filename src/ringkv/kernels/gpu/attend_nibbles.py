# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Attention of one split over entries of 4 bits an element. Values have a scale and a minimum a vector.

B rows of a step, H key-value heads, Q queries each, C entries, D head_dim, S splits, E first keys that are exact.

A nibble n is multiplied as n + OFFSET. A value's element is scale * n + minimum, so a sum corrects for both. Weights
times scales are rounded; taken from the middle of the levels, this changes a value the least.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.elements import OFFSET, nibble_0, nibble_1, nibble_2, nibble_3
from ringkv.kernels.gpu.encoded_tiles import load_words, next_weights, with_first
from ringkv.kernels.gpu.nibbles import MIDDLE, elements_of, low_half
from ringkv.kernels.gpu.tiles import entries_per_split


@triton.jit(do_not_specialize=["heads", "queries", "splits", "blocks"])
def attend_nibbles(
    q_at,  # as `rotate_queries` wrote them
    dots_at,
    keys_at,  # int16 [S, H, C, D / 4]
    key_ranges_at,  # [S, H, C], as SCORES takes them
    values_at,
    value_ranges_at,  # int32 [S, H, C]: scale and minimum in float16
    slot_at,
    live_at,
    part_at,
    lse_at,
    plane_slot,  # strides, in words
    plane_head,
    key_range_slot,  # and of ranges
    key_range_head,
    value_range_slot,
    value_range_head,
    scale,  # times log2(e)
    heads,
    queries,
    splits,
    blocks,  # programs that share the queries of one head
    ROWS: tl.constexpr,  # queries of one program, padded
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH / 4 words, padded to a power of two
    EXACT: tl.constexpr,
    BLOCK: tl.constexpr,
    SCORES: tl.constexpr,  # of a tile's keys, see `key_scores`
    PACKED: tl.constexpr,
):
    split, head, row = tl.program_id(0), tl.program_id(1) // blocks, tl.program_id(2)
    live = tl.load(live_at + row)
    width = entries_per_split(live, splits, BLOCK)
    first, stop = split * width, tl.minimum((split + 1) * width, live)
    if first >= stop:
        return
    query, word = tl.program_id(1) % blocks * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    is_query, real = query < queries, word < WIDTH // 4
    of_query = (row * heads + head) * queries + query
    element, distance = elements_of(word, WIDTH)
    is_element, of_head = is_query[:, None] & real[None, :], of_query[:, None] * WIDTH + element[None, :]
    q0 = tl.load(q_at + of_head, mask=is_element, other=0.0)
    q1 = tl.load(q_at + of_head + distance[None, :], mask=is_element, other=0.0)
    q2 = tl.load(q_at + of_head + 2 * distance[None, :], mask=is_element, other=0.0)
    q3 = tl.load(q_at + of_head + 3 * distance[None, :], mask=is_element, other=0.0)
    sums = tl.sum(q0.to(tl.float32) + q1.to(tl.float32) + q2.to(tl.float32) + q3.to(tl.float32), 1)
    dots = dots_at + of_query * (2 + EXACT)
    factor = tl.load(dots, mask=is_query, other=0.0) * scale
    slot = tl.load(slot_at + row).to(tl.int64)
    plane = slot * plane_slot + head.to(tl.int64) * plane_head  # beyond 2**31 elements in a large cache
    keys, key_ranges = keys_at + plane, key_ranges_at + slot * key_range_slot + head * key_range_head
    values, value_ranges = values_at + plane, value_ranges_at + slot * value_range_slot + head * value_range_head
    q0, q1, q2, q3 = tl.trans(q0), tl.trans(q1), tl.trans(q2), tl.trans(q3)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    shift = tl.zeros((ROWS,), tl.float32)  # of all elements of the weighted sum
    acc0 = tl.zeros((ROWS, COLUMNS), tl.float32)
    acc1 = tl.zeros((ROWS, COLUMNS), tl.float32)
    acc2 = tl.zeros((ROWS, COLUMNS), tl.float32)
    acc3 = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(first, stop, BLOCK):
        at = start + tl.arange(0, BLOCK)
        read = tl.minimum(at, stop - 1)
        k = load_words(keys, read, WIDTH // 4, COLUMNS)
        scores = SCORES(k, tl.load(key_ranges + read), q0, q1, q2, q3, sums, WIDTH, PACKED)
        scores = with_first(scores * factor[None, :], dots + 2, is_query, start, at, scale, EXACT)
        scores = tl.where((at < stop)[:, None], scores, float("-inf"))
        limits = tl.load(value_ranges + read)
        steps = low_half(limits)
        weights, shrink, unscaled, top, total = next_weights(scores, steps, top, total)
        weights = weights.to(q0.dtype)
        middles = unscaled * (low_half(limits >> 16) + MIDDLE * steps)[:, None]
        shift = shift * shrink + tl.sum(middles - (OFFSET + MIDDLE) * weights.to(tl.float32), 0)
        weights = tl.trans(weights)
        v = load_words(values, read, WIDTH // 4, COLUMNS)
        acc0 = tl.dot(weights, nibble_0(v, PACKED).to(q0.dtype), acc0 * shrink[:, None], input_precision="ieee")
        acc1 = tl.dot(weights, nibble_1(v, PACKED).to(q0.dtype), acc1 * shrink[:, None], input_precision="ieee")
        acc2 = tl.dot(weights, nibble_2(v, PACKED).to(q0.dtype), acc2 * shrink[:, None], input_precision="ieee")
        acc3 = tl.dot(weights, nibble_3(v, PACKED).to(q0.dtype), acc3 * shrink[:, None], input_precision="ieee")
    place = (row.to(tl.int64) * heads + head) * splits + split  # beyond 2**31 elements with many slots
    place = place * queries + query
    parts = part_at + place[:, None] * WIDTH + element[None, :]
    tl.store(parts, (acc0 + shift[:, None]) / total[:, None], mask=is_element)
    tl.store(parts + distance[None, :], (acc1 + shift[:, None]) / total[:, None], mask=is_element)
    tl.store(parts + 2 * distance[None, :], (acc2 + shift[:, None]) / total[:, None], mask=is_element)
    tl.store(parts + 3 * distance[None, :], (acc3 + shift[:, None]) / total[:, None], mask=is_element)
    common = tl.load(dots + 1, mask=is_query, other=0.0) * scale
    tl.store(lse_at + place, top + tl.log2(total) + common, mask=is_query)
