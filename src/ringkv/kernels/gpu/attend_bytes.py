# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Attention of one split over entries of a byte an element and a scale a vector, int8 or e4m3.

B rows of a step, H key-value heads, Q queries each, C entries, D head_dim, S splits, E first keys that are exact.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.encoded_tiles import load_words, next_weights, with_first
from ringkv.kernels.gpu.tiles import entries_per_split


@triton.jit(do_not_specialize=["heads", "queries", "splits", "blocks"])
def attend_bytes(
    q_at,  # as `rotate_queries` wrote them
    dots_at,
    keys_at,  # int16 [S, H, C, D / 2]
    key_scales_at,
    values_at,
    value_scales_at,
    slot_at,
    live_at,
    part_at,
    lse_at,
    plane_slot,  # strides, in words
    plane_head,
    key_scale_slot,  # and of scales
    key_scale_head,
    value_scale_slot,
    value_scale_head,
    scale,  # times log2(e)
    heads,
    queries,
    splits,
    blocks,  # programs that share the queries of one head
    ROWS: tl.constexpr,  # queries of one program, padded
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH / 2 words, padded to a power of two
    EXACT: tl.constexpr,
    BLOCK: tl.constexpr,
    LOW: tl.constexpr,
    HIGH: tl.constexpr,
    UNIT: tl.constexpr,  # an element is so many times what LOW and HIGH return
    PACKED: tl.constexpr,
):
    split, head, row = tl.program_id(0), tl.program_id(1) // blocks, tl.program_id(2)
    live = tl.load(live_at + row)
    width = entries_per_split(live, splits, BLOCK)
    first, stop = split * width, tl.minimum((split + 1) * width, live)
    if first >= stop:
        return
    query, word = tl.program_id(1) % blocks * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    is_query = query < queries
    is_element = is_query[:, None] & (word < WIDTH // 2)[None, :]
    of_query = (row * heads + head) * queries + query
    of_head = of_query[:, None] * WIDTH + 2 * word[None, :]
    q_low = tl.load(q_at + of_head, mask=is_element, other=0.0)
    q_high = tl.load(q_at + of_head + 1, mask=is_element, other=0.0)
    dots = dots_at + of_query * (2 + EXACT)
    factor = tl.load(dots, mask=is_query, other=0.0) * (UNIT * scale)
    slot = tl.load(slot_at + row).to(tl.int64)
    plane = slot * plane_slot + head.to(tl.int64) * plane_head  # beyond 2**31 elements in a large cache
    keys, key_scales = keys_at + plane, key_scales_at + slot * key_scale_slot + head * key_scale_head
    values, value_scales = values_at + plane, value_scales_at + slot * value_scale_slot + head * value_scale_head
    q_low, q_high = tl.trans(q_low), tl.trans(q_high)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc_low = tl.zeros((ROWS, COLUMNS), tl.float32)
    acc_high = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(first, stop, BLOCK):
        at = start + tl.arange(0, BLOCK)
        read = tl.minimum(at, stop - 1)
        k = load_words(keys, read, WIDTH // 2, COLUMNS)
        scores = tl.dot(LOW(k, PACKED).to(q_low.dtype), q_low, input_precision="ieee")
        scores = tl.dot(HIGH(k, PACKED).to(q_low.dtype), q_high, scores, input_precision="ieee")
        scores *= factor[None, :] * tl.load(key_scales + read).to(tl.float32)[:, None]
        scores = with_first(scores, dots + 2, is_query, start, at, scale, EXACT)
        scores = tl.where((at < stop)[:, None], scores, float("-inf"))
        of_values = tl.load(value_scales + read).to(tl.float32)
        weights, shrink, _, top, total = next_weights(scores, of_values, top, total)
        weights = tl.trans(weights.to(q_low.dtype))
        v = load_words(values, read, WIDTH // 2, COLUMNS)
        acc_low = tl.dot(weights, LOW(v, PACKED).to(q_low.dtype), acc_low * shrink[:, None], input_precision="ieee")
        acc_high = tl.dot(weights, HIGH(v, PACKED).to(q_low.dtype), acc_high * shrink[:, None], input_precision="ieee")
    place = (row.to(tl.int64) * heads + head) * splits + split  # beyond 2**31 elements with many slots
    place = place * queries + query
    parts, by = part_at + place[:, None] * WIDTH + 2 * word[None, :], (UNIT / total)[:, None]
    tl.store(parts, acc_low * by, mask=is_element)
    tl.store(parts + 1, acc_high * by, mask=is_element)
    common = tl.load(dots + 1, mask=is_query, other=0.0) * scale
    tl.store(lse_at + place, top + tl.log2(total) + common, mask=is_query)
