# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Adding a step's token to slots in the format zipcache: the first kernel of `zip_attend`.

If a buffer is full, it becomes a chunk first, inside the same launch, so that a CUDA graph can hold it. The chunk has
the bits of `kernels.zip_codes`. So it must be compiled without fused multiply-adds, which round once where torch rounds
twice. A packed byte of 4 bits has two elements, one of 2 bits has four: nibbles of two bytes that are half a vector
apart.

B rows of a step, S slots, H key-value heads, P plain, U salient and V other entries, N chunks, D elements of a vector.
"""

import triton
import triton.language as tl

from ringkv.base.zip_sizes import CHUNK as _CHUNK
from ringkv.base.zip_sizes import COUNTS as _COUNTS
from ringkv.base.zip_sizes import SALIENT as _SALIENT
from ringkv.kernels.constants import OUTWARD as _OUTWARD
from ringkv.kernels.gpu.elements import elements_of
from ringkv.kernels.gpu.encode_vector import MAX_HALF, clamp, half_scale, rounded
from ringkv.kernels.gpu.tiles import vector_of

CHUNK, COUNTS, SALIENT = tl.constexpr(_CHUNK), tl.constexpr(_COUNTS), tl.constexpr(_SALIENT)
TOKENS = tl.constexpr(triton.next_power_of_2(_CHUNK))
UP, DOWN = tl.constexpr(1 + _OUTWARD), tl.constexpr(1 - _OUTWARD)
STEP = tl.constexpr(16)  # bytes of a vector that are encoded at a time


@triton.jit
def held(counts):
    """Return a head's sinks, tokens in its buffer, tokens of chunk 0, chunks after it, and the place of the oldest."""
    return tl.load(counts), tl.load(counts + 1), tl.load(counts + 2), tl.load(counts + 3), tl.load(counts + 4)


@triton.jit
def salient_of(tokens):
    """Return how many tokens of a chunk have 4 bits."""
    return (tokens * SALIENT + 99) // 100


SIZES, UNALIGNED = ("heads", "plain", "high", "low", "chunks"), ("ranges_at", "counts_at", "attention_at")


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=UNALIGNED)
def append_token(
    new,  # keys and values [B, H, D], with the strides of a row and a head
    plain_keys_at,
    high_keys_at,
    low_keys_at,
    channels_at,
    attention_at,
    plain_values_at,
    high_values_at,
    low_values_at,
    factors_at,
    ranges_at,
    counts_at,
    rows,
    heads,
    plain,  # P
    high,  # U
    low,  # V
    chunks,  # N
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH, padded to a power of two
):
    head, row = tl.program_id(0), tl.program_id(1)
    live = tl.load(rows.live + row)
    if live == 0:
        return
    of_slot = tl.load(rows.slot + row).to(tl.int64) * heads + head
    counts = counts_at + of_slot * COUNTS
    first, buffered, fixed, later, oldest = held(counts)
    keys, values = plain_keys_at + of_slot * plain * WIDTH, plain_values_at + of_slot * plain * WIDTH
    attention = attention_at + of_slot * CHUNK
    if buffered == CHUNK:
        replaces = (later > 0) & ((first + fixed + later * CHUNK + 1 >= live) | (later + 1 == chunks))
        chunk = tl.where(replaces, oldest, later)
        token = tl.arange(0, TOKENS)
        is_high = _is_salient(attention, token)
        is_low = (token < CHUNK) & (is_high == 0)
        salient = salient_of(fixed)
        to_high = salient + chunk * SALIENT + tl.cumsum(is_high.to(tl.int32), 0) - 1
        to_low = fixed - salient + chunk * (CHUNK - SALIENT) + tl.cumsum(is_low.to(tl.int32), 0) - 1
        place = of_slot * chunks + chunk + 1
        channels, factors = channels_at + place * 4 * WIDTH, factors_at + place * WIDTH
        ranges = ranges_at + of_slot * (high + low) * 2
        buffer_k, buffer_v = keys + first * WIDTH, values + first * WIDTH
        of_high, of_low = of_slot * high * (WIDTH // 2), of_slot * low * (WIDTH // 4)
        high_keys, high_values = high_keys_at + of_high, high_values_at + of_high
        low_keys, low_values = low_keys_at + of_low, low_values_at + of_low
        _write_factors(buffer_v, factors, WIDTH)
        tl.debug_barrier()  # all factors are written
        _encode_keys(buffer_k, is_high, to_high, high_keys, channels, 4, WIDTH)
        _encode_keys(buffer_k, is_low, to_low, low_keys, channels + 2 * WIDTH, 2, WIDTH)
        _encode_values(buffer_v, is_high, to_high, high_values, factors, ranges, 4, WIDTH)
        _encode_values(buffer_v, is_low, to_low, low_values, factors, ranges + high * 2, 2, WIDTH)
        tl.debug_barrier()  # all threads have read the counts
        tl.store(counts + 3, tl.where(replaces, later, later + 1))
        tl.store(counts + 4, tl.where(replaces, (oldest + 1) % tl.maximum(later, 1), oldest))
        buffered = 0
    tl.debug_barrier()  # all threads have read the counts and the buffer
    column = tl.arange(0, COLUMNS)
    real, entry = column < WIDTH, (first + buffered) * WIDTH + column
    k = tl.load(vector_of(new[0], row, head) + column, mask=real, other=0.0)
    v = tl.load(vector_of(new[1], row, head) + column, mask=real, other=0.0)
    tl.store(keys + entry, k, mask=real)
    tl.store(values + entry, v, mask=real)
    tl.store(attention + buffered, 0.0)
    tl.store(counts + 1, buffered + 1)


@triton.jit
def _is_salient(attention, token):
    """Return which tokens of a full buffer are salient: those with most attention a step, of equal ones the earlier."""
    real = token < CHUNK
    mean = tl.div_rn(tl.load(attention + token, mask=real, other=0.0), (-token + CHUNK).to(tl.float32))
    mean = tl.where(real, mean, float("-inf"))
    before = (mean[None, :] == mean[:, None]) & (token[None, :] < token[:, None])
    ahead = (mean[None, :] > mean[:, None]) | before
    return real & (tl.sum(ahead.to(tl.int32), 1) < SALIENT)


@triton.jit
def _encode_keys(x_at, is_encoded, to, keys, channels, BITS: tl.constexpr, WIDTH: tl.constexpr):
    """Encode tokens of a buffer [CHUNK, D] as entries `to` of a head's keys, and write the ranges of channels."""
    LEVELS: tl.constexpr = 2**BITS - 1
    BYTES: tl.constexpr = WIDTH * BITS // 8
    token = tl.arange(0, TOKENS)
    for start in range(0, BYTES, STEP):
        byte = start + tl.arange(0, STEP)
        real = byte < BYTES
        mask, packed = is_encoded[:, None] & real[None, :], tl.zeros((TOKENS, STEP), tl.int32)
        for part in tl.static_range(8 // BITS):
            element = element_of(byte, part, WIDTH)
            x = tl.load(x_at + token[:, None] * WIDTH + element[None, :], mask=mask, other=0.0).to(tl.float32)
            low, high = tl.min(tl.where(mask, x, float("inf")), 0), tl.max(tl.where(mask, x, float("-inf")), 0)
            scale, minimum = range_of(low, high, LEVELS)
            tl.store(channels + element, scale, mask=real)
            tl.store(channels + WIDTH + element, minimum, mask=real)
            packed |= levels_of(x, scale[None, :], minimum[None, :], LEVELS) << shift_of(part)
        tl.store(keys + to[:, None] * BYTES + byte[None, :], packed.to(tl.uint8), mask=mask)


@triton.jit
def _encode_values(x_at, is_encoded, to, values, factors, ranges, BITS: tl.constexpr, WIDTH: tl.constexpr):
    """Encode tokens of a buffer [CHUNK, D] as entries `to` of a head's values, and write their ranges."""
    LEVELS: tl.constexpr = 2**BITS - 1
    BYTES: tl.constexpr = WIDTH * BITS // 8
    low, high = tl.full((TOKENS,), float("inf"), tl.float32), tl.full((TOKENS,), float("-inf"), tl.float32)
    for start in range(0, BYTES, STEP):
        byte = start + tl.arange(0, STEP)
        real = byte < BYTES
        mask = is_encoded[:, None] & real[None, :]
        for part in tl.static_range(8 // BITS):
            x = _normalised(x_at, factors, byte, real, mask, part, WIDTH)
            low = tl.minimum(low, tl.min(tl.where(mask, x, float("inf")), 1))
            high = tl.maximum(high, tl.max(tl.where(mask, x, float("-inf")), 1))
    scale, minimum = range_of(low, high, LEVELS)
    tl.store(ranges + to * 2, scale, mask=is_encoded)
    tl.store(ranges + to * 2 + 1, minimum, mask=is_encoded)
    for start in range(0, BYTES, STEP):
        byte = start + tl.arange(0, STEP)
        real = byte < BYTES
        mask, packed = is_encoded[:, None] & real[None, :], tl.zeros((TOKENS, STEP), tl.int32)
        for part in tl.static_range(8 // BITS):
            x = _normalised(x_at, factors, byte, real, mask, part, WIDTH)
            packed |= levels_of(x, scale[:, None], minimum[:, None], LEVELS) << shift_of(part)
        tl.store(values + to[:, None] * BYTES + byte[None, :], packed.to(tl.uint8), mask=mask)


@triton.jit
def _write_factors(x_at, factors, WIDTH: tl.constexpr):
    """Write the factors of the channels of a buffer's values."""
    token = tl.arange(0, TOKENS)
    for start in range(0, WIDTH, STEP):
        column = start + tl.arange(0, STEP)
        real = column < WIDTH
        mask = (token < CHUNK)[:, None] & real[None, :]
        x = tl.load(x_at + token[:, None] * WIDTH + column[None, :], mask=mask, other=0.0).to(tl.float32)
        root = tl.sqrt(tl.max(tl.abs(x), 0).to(tl.float64))  # see `zip_codes.value_factors`
        tl.store(factors + column, half_scale(root.to(tl.float32)), mask=real)


@triton.jit
def _normalised(x_at, factors, byte, real, mask, part: tl.constexpr, WIDTH: tl.constexpr):
    """Return a part of a buffer's values, float32 [TOKENS, STEP], divided by the factors of its channels."""
    token, element = tl.arange(0, TOKENS), element_of(byte, part, WIDTH)
    x = tl.load(x_at + token[:, None] * WIDTH + element[None, :], mask=mask, other=0.0).to(tl.float32)
    factor = tl.load(factors + element, mask=real, other=1.0).to(tl.float32)
    return tl.div_rn(x, tl.zeros_like(x) + factor[None, :])


@triton.jit
def element_of(byte, PART: tl.constexpr, WIDTH: tl.constexpr):
    """Return the element that is one of the parts of packed bytes: for 2 bits, parts 2 and 3 are half a vector on."""
    pair = byte + PART // 2 * (WIDTH // 4)  # a byte of two elements
    element, distance = elements_of(pair // 2, WIDTH)
    return element + (pair % 2 * 2 + PART % 2) * distance


@triton.jit
def shift_of(PART: tl.constexpr):
    """Return the lowest bit of a part in its byte."""
    return 4 * (PART % 2) + 2 * (PART // 2)


@triton.jit
def range_of(low, high, LEVELS: tl.constexpr):
    """Return scale and minimum, float16, of elements from `low` to `high`, whose levels are at most LEVELS."""
    minimum = clamp(low * tl.where(low < 0, UP, DOWN), -MAX_HALF, MAX_HALF).to(tl.float16)
    return half_scale((high - minimum.to(tl.float32)) * (UP / LEVELS)), minimum


@triton.jit
def levels_of(x, scale, minimum, LEVELS: tl.constexpr):
    """Return levels, int32, of float32 elements."""
    above = x - minimum.to(tl.float32)
    return clamp(rounded(tl.div_rn(above, tl.zeros_like(above) + scale.to(tl.float32))), 0.0, LEVELS).to(tl.int32)
