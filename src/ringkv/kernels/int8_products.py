"""int8_products: formats of quantised weights whose products quantise the rows of x, too, and multiply in int8.

M rows, G groups of 128 elements along K; the last may be shorter. Groups are rotated by a Hadamard matrix in blocks of
32, which spreads outliers (QuaRot, arXiv 2404.00456), then rounded to steps of a scale of their own: 127 of them, or 7
for rows of 4 bits. Products of int8 are exact in a group, and added in float32.

w8a8  weights are rotated before they are packed as int8    [S, 1 + 8 K, 16, 4]: the lines of `quantize` in words
w4a8  int4 weights, which products of more than 8 rows rotate and round to int8    [S, K, 5, 16, 4]
w4a4  the same with rows of 4 bits, which no CPU multiplies faster                  [S, K, 5, 16, 2, 2]
"""

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from ringkv.kernels import quantize
from ringkv.kernels.hadamard import butterflies
from ringkv.kernels.packing import row_chunks
from ringkv.kernels.quantize import LINE, TINY, Int4Groups

GROUP = 128  # elements that share a scale
ROTATION = 32  # elements that are rotated together
WORD = 4  # bytes
OF_4_BITS = 7  # the largest integer
OF_8_BITS = 127


def groups(x: Tensor, levels: int = OF_8_BITS) -> tuple[Tensor, Tensor]:
    """Return rotated rows [M, in] as whole numbers, float32 [M, G, 128], and their scales, float32 [M, G]."""
    rotated = butterflies(pad(x.float(), (0, -x.shape[1] % GROUP)), ROTATION).unflatten(1, (-1, GROUP))
    largest = rotated.abs().amax(-1)
    is_zero = largest < TINY
    by = torch.full_like(largest, levels) / largest
    return (rotated * by.masked_fill(is_zero, 0)[..., None]).round_(), (largest / levels).masked_fill(is_zero, 0)


def rounded(x: Tensor, levels: int = OF_8_BITS) -> Tensor:
    """Return rows as products multiply them: float32 [M, in]."""
    q, scales = groups(x, levels)
    return butterflies((q * scales[..., None]).flatten(1), ROTATION)[:, : x.shape[1]] / ROTATION


rounded_to_4_bits = partial(rounded, levels=OF_4_BITS)


def pack_w8a8(weight: Tensor) -> Tensor:
    """Pack bfloat16 [out, in]."""
    rotated = (butterflies(chunk.float(), ROTATION) / ROTATION for chunk in row_chunks(weight))
    return _in_words(torch.cat([quantize.pack_int8(chunk) for chunk in rotated]))


def unpack_w8a8(packed: Tensor) -> Tensor:
    """Invert `pack_w8a8` except for rounding: float32 [out, in]."""
    return butterflies(quantize.unpack_int8(packed.flatten(2)), ROTATION)


def w8a8_rows(packed: Tensor, rows: Tensor) -> Tensor:
    """Look up rows of a packed matrix: int [N] -> bfloat16 [N, in]. Sums are exact before the scale is applied."""
    q, scales = quantize.int8_parts(packed.flatten(2), rows)
    return (butterflies(q.float(), ROTATION) * scales).bfloat16()


def pack_w4a8(weight: Tensor | Int4Groups) -> Tensor:
    """Pack [out, in], bfloat16 or already in groups; `quantize.unpack_int4` inverts it."""
    return _in_words(quantize.pack_int4(weight))


def pack_w4a4(weight: Tensor | Int4Groups) -> Tensor:
    """Pack [out, in], bfloat16 or already in groups; `quantize.unpack_int4` inverts it."""
    packed: Tensor = pack_w4a8(weight).unflatten(-1, (2, 2))
    return packed


def _in_words(lines: Tensor) -> Tensor:
    words: Tensor = lines.unflatten(-1, (LINE // WORD, WORD))
    return words
