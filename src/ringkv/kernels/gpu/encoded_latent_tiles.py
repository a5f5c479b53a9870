# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Tiles of encoded latents, decoded for both of their products; each function loads one as `plain_tile` does.

They are loaded as 16-bit words. The elements of a word follow each other in a tile, so those of nibbles are in the
order of `by_nibble`.

D elements of a latent, in groups of GROUP with a scale each.
"""

import triton
import triton.language as tl

from ringkv.base.cache_spec import LATENT_GROUP as _GROUP
from ringkv.kernels.gpu.elements import OFFSET, int8_of, low_half, nibble_of

GROUP = tl.constexpr(_GROUP)


@triton.jit
def int8_tile(
    latents,  # int16
    scales,
    at,
    is_read,
    START: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    PACKED: tl.constexpr,
):
    words = load_words(latents, at, is_read, START // 2, WIDTH // 2, SIZE // 2)
    elements = tl.interleave(int8_of(words, 0, PACKED), int8_of(words, 1, PACKED))
    return elements.to(tl.float32) * by_group(load_ranges(scales, at, is_read, START, WIDTH, SIZE), SIZE)


@triton.jit
def int4_tile(
    latents,  # int16
    ranges,  # int32: scale and minimum in float16
    at,
    is_read,
    START: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    PACKED: tl.constexpr,
):
    words = load_words(latents, at, is_read, START // 4, WIDTH // 4, SIZE // 4)
    even = tl.interleave(nibble_of(words, 0, PACKED), nibble_of(words, 2, PACKED))
    odd = tl.interleave(nibble_of(words, 1, PACKED), nibble_of(words, 3, PACKED))
    limits = load_ranges(ranges, at, is_read, START, WIDTH, SIZE)
    steps = low_half(limits)
    lowest = low_half(limits >> 16) - OFFSET * steps
    return tl.interleave(even, odd).to(tl.float32) * by_group(steps, SIZE) + by_group(lowest, SIZE)


@triton.jit
def load_words(latents, at, is_read, START: tl.constexpr, WORDS: tl.constexpr, SIZE: tl.constexpr):
    """Return words START .. START + SIZE - 1 of entries, [BLOCK, SIZE]; 0 for those that are not read."""
    word = START + tl.arange(0, SIZE)
    mask = is_read[:, None] if START == 0 else is_read[:, None] & (word < WORDS)[None, :]
    return tl.load(latents + at[:, None] * WORDS + word[None, :], mask=mask, other=0)


@triton.jit
def load_ranges(ranges, at, is_read, START: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """Return the scales of the groups of elements START .. START + SIZE - 1, [BLOCK, groups]."""
    ALL: tl.constexpr = (WIDTH + GROUP - 1) // GROUP
    HERE: tl.constexpr = (SIZE + GROUP - 1) // GROUP
    group = tl.arange(0, HERE) + START // GROUP
    mask = is_read[:, None] & (group < ALL)[None, :]
    return tl.load(ranges + at[:, None] * ALL + group[None, :], mask=mask, other=0)


@triton.jit
def by_group(factors, SIZE: tl.constexpr):
    """Return the factor of each element's group, [BLOCK, SIZE], from [BLOCK, groups]."""
    BLOCK: tl.constexpr = factors.shape[0]
    GROUPS: tl.constexpr = factors.shape[1]
    each = tl.broadcast_to(factors[:, :, None], (BLOCK, GROUPS, SIZE // GROUPS))
    return tl.reshape(each, (BLOCK, SIZE))
