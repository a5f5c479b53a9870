# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Digests of the pages that a step completes.

Keys are decoded with the bits of their torch reference's `decode`. They must be compiled without fused multiply-adds,
which round once where torch rounds twice.

B rows of a step, S slots, H key-value heads, P pages of a slot, D elements of a vector.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.elements import by_nibble, low_half
from ringkv.kernels.gpu.hadamard import rotate
from ringkv.kernels.gpu.tiles import vector_of


@triton.jit
def complete_page(
    k,  # [B, H, D], with the strides of a row and a head
    planes,  # of keys, and of their ranges if they are encoded: [S, H, C, ...], with the strides of a slot and a head
    digests,  # [S, H, P, 2, D], with the strides of a slot and a head
    rows,
    index,  # see `readings`
    READ: tl.constexpr,
    DECODE: tl.constexpr,  # `decode_...`; None: keys are plain, and the new one is not written yet
    PAGE: tl.constexpr,  # entries of a page, a power of two
    KEYS: tl.constexpr,  # that are decoded at a time
    SIZE: tl.constexpr,  # elements of the tensor of keys that an entry has
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH, padded to a power of two
    STAGES: tl.constexpr,
):
    head, row = tl.program_id(0), tl.program_id(1)
    slot, entry = tl.load(rows.slot + row).to(tl.int64), tl.load(rows.entry + row)
    if (tl.load(rows.live + row) == 0) | (entry % PAGE != PAGE - 1):
        return
    column = tl.arange(0, COLUMNS)
    real = column < WIDTH
    keys = READ.start(index, planes[0], slot, head, SIZE)
    first = READ.newest(index, slot, head, entry - (PAGE - 1))
    if DECODE is None:
        last = tl.load(vector_of(k, row, head) + column, mask=real, other=0.0)
        upper, lower = digest_of(keys + first * WIDTH, last, PAGE, WIDTH, COLUMNS)
    else:
        ranges = READ.start(index, planes[1], slot, head, 1)
        upper, lower = digest_of_encoded(keys, ranges, first, DECODE, PAGE, KEYS, WIDTH, COLUMNS, STAGES)
    digests_at, digest_slot, digest_head = digests
    to = digests_at + slot * digest_slot + head.to(tl.int64) * digest_head + entry // PAGE * 2 * WIDTH + column
    tl.store(to, upper.to(digests_at.dtype.element_ty), mask=real)
    tl.store(to + WIDTH, lower.to(digests_at.dtype.element_ty), mask=real)


@triton.jit
def digest_of(
    keys,  # pointer to the keys of a page
    last,  # [COLUMNS], its last key, which is not written yet
    PAGE: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Return the two float32 [COLUMNS] of `kernels.pages.digest`, whose order of sums this has, too."""
    column = tl.arange(0, COLUMNS)
    real = column < WIDTH
    last = last.to(tl.float32)
    high, low = last, last
    for i in tl.static_range(PAGE - 1):
        key = tl.load(keys + i * WIDTH + column, mask=real, other=0.0).to(tl.float32)
        high, low = tl.maximum(high, key), tl.minimum(low, key)
    middle, total = (high + low) * 0.5, tl.zeros((COLUMNS,), tl.float32)
    for i in tl.static_range(PAGE - 1):
        total += tl.abs(middle - tl.load(keys + i * WIDTH + column, mask=real, other=0.0).to(tl.float32))
    radius = (total + tl.abs(middle - last)) * (1.0 / PAGE)
    return middle + radius, middle - radius


@triton.jit
def digest_of_encoded(
    keys,  # pointers to entry 0 of a slot and head
    ranges,
    first,  # entry of the page
    DECODE: tl.constexpr,
    PAGE: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Return the two float32 [COLUMNS] of `kernels.pages.digest` for keys as they are decoded, minus their center."""
    high, low = tl.full((COLUMNS,), float("-inf"), tl.float32), tl.full((COLUMNS,), float("inf"), tl.float32)
    for start in tl.static_range(0, PAGE, KEYS):
        decoded = _decoded(keys, ranges, first + start, DECODE, KEYS, WIDTH, COLUMNS, STAGES)
        high, low = tl.maximum(high, tl.max(decoded, 0)), tl.minimum(low, tl.min(decoded, 0))
    middle, total = (high + low) * 0.5, tl.zeros((COLUMNS,), tl.float32)
    for start in tl.static_range(0, PAGE, KEYS):
        decoded = _decoded(keys, ranges, first + start, DECODE, KEYS, WIDTH, COLUMNS, STAGES)
        total += tl.sum(tl.abs(middle[None, :] - decoded), 0)
    radius = total * (1.0 / PAGE)
    return middle + radius, middle - radius


@triton.jit
def _decoded(
    keys,
    ranges,
    first,
    DECODE: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Return so many keys from the first one on, float32 [KEYS, COLUMNS]."""
    rotated = DECODE(keys, ranges, first + tl.arange(0, KEYS), WIDTH, COLUMNS)
    return tl.reshape(rotate(tl.reshape(rotated, (KEYS * COLUMNS,)), KEYS * COLUMNS, STAGES), (KEYS, COLUMNS))


@triton.jit
def decode_bytes(keys, scales, entry, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Return keys before their rotation, float32 [entries, COLUMNS], which are 0 from D on."""
    column = tl.arange(0, COLUMNS)
    elements = tl.load(keys + entry[:, None] * WIDTH + column[None, :], mask=(column < WIDTH)[None, :], other=0)
    return elements.to(tl.float32) * tl.load(scales + entry)[:, None]


@triton.jit
def decode_nibbles(keys, ranges, entry, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Return what `decode_bytes` does."""
    column = tl.arange(0, COLUMNS)
    real, place = (column < WIDTH)[None, :], by_nibble(column, WIDTH)
    words = tl.load(keys + entry[:, None] * (WIDTH // 4) + (place // 4)[None, :], mask=real, other=0)
    levels = (words.to(tl.int32) >> (place % 4 * 4)[None, :]) & 15
    limits = tl.load(ranges + entry)
    elements = levels.to(tl.float32) * low_half(limits)[:, None] + low_half(limits >> 16)[:, None]
    return tl.where(real, elements, 0.0)
