# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Decoding of keys for digests; each function has the bits of its torch reference's `decode`, before the rotation.

They must be compiled without fused multiply-adds, which round once where torch rounds twice.

K entries, D elements of a vector. Results are float32 [K, COLUMNS], which are 0 from D on.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.nibbles import low_half
from ringkv.kernels.gpu.stored_order import by_nibble


@triton.jit
def decode_bytes(keys, scales, entry, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.arange(0, COLUMNS)
    elements = tl.load(keys + entry[:, None] * WIDTH + column[None, :], mask=(column < WIDTH)[None, :], other=0)
    return elements.to(tl.float32) * tl.load(scales + entry)[:, None]


@triton.jit
def decode_nibbles(keys, ranges, entry, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.arange(0, COLUMNS)
    real, place = (column < WIDTH)[None, :], by_nibble(column, WIDTH)
    words = tl.load(keys + entry[:, None] * (WIDTH // 4) + (place // 4)[None, :], mask=real, other=0)
    levels = (words.to(tl.int32) >> (place % 4 * 4)[None, :]) & 15
    limits = tl.load(ranges + entry)
    elements = levels.to(tl.float32) * low_half(limits)[:, None] + low_half(limits >> 16)[:, None]
    return tl.where(real, elements, 0.0)
