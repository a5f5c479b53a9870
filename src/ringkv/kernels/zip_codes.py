"""zip_codes: vectors of a chunk in 4 or 2 bits, as ZipCache (arXiv 2405.14256, section 4) quantises them.

Keys have a scale and a minimum per channel. Values are divided by a factor of their channel, which is the square root
of its largest magnitude in the chunk, and then have a scale and a minimum per token. All parameters are float16.
Levels are rounded with the parameters as they are stored, and minima are rounded down: an element is off by at most
half a step.

H key-value heads, n tokens, D elements of a vector.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.kernels.constants import OUTWARD
from ringkv.kernels.int4 import half_offset, half_scale, pack, unpack

HIGH_BITS, LOW_BITS = 4, 2


class Range(NamedTuple):
    """A level is scale * level + minimum. Both float16, of the same shape."""

    scale: Tensor
    minimum: Tensor


def range_of(x: Tensor, dim: int, bits: int) -> Range:
    """Return the range of float32 elements along a dimension, which becomes 1. An empty dimension gives zeros."""
    if not x.shape[dim]:
        zeros = x.new_zeros(*x.shape[:dim], 1, *x.shape[dim:][1:], dtype=torch.float16)
        return Range(half_scale(zeros.float()), zeros)
    low, high = x.aminmax(dim=dim, keepdim=True)
    minimum = half_offset(low * torch.where(low < 0, 1 + OUTWARD, 1 - OUTWARD))
    return Range(half_scale((high - minimum.float()) * ((1 + OUTWARD) / (2**bits - 1))), minimum)


def quantise(x: Tensor, by: Range, bits: int) -> Tensor:
    """Return packed levels uint8 [..., D * bits / 8] of float32 elements [..., D]."""
    levels = ((x - by.minimum.float()) / by.scale.float()).round().clamp(0, 2**bits - 1)
    return _PACK[bits](levels.to(torch.uint8))


def dequantise(packed: Tensor, by: Range, bits: int) -> Tensor:
    """Return float32 [..., D]."""
    return _UNPACK[bits](packed).float() * by.scale.float() + by.minimum.float()


def encode_keys(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Encode float32 [H, n, D] to levels [H, n, D * bits / 8] and parameters of channels [H, 2, D]."""
    by = range_of(x, 1, bits)
    return quantise(x, by, bits), torch.cat(by, 1)


def decode_keys(packed: Tensor, channels: Tensor, bits: int) -> Tensor:
    """Invert `encode_keys`."""
    return dequantise(packed, Range(*channels.split(1, 1)), bits)


def value_factors(x: Tensor) -> Tensor:
    """Return the factor of each channel of a chunk's values [H, n, D], float16 [H, D]; never 0."""
    if not x.shape[1]:
        return x.new_ones(x.shape[0], x.shape[2], dtype=torch.float16)
    # In float64: the last bit of a float32 root depends on the library that computes it.
    return half_scale(x.abs().amax(1).double().sqrt().float())


def encode_values(x: Tensor, factors: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Encode float32 [H, n, D] to levels [H, n, D * bits / 8], and a scale and a minimum per token [H, n, 2]."""
    normalised = x / factors.float()[:, None]
    by = range_of(normalised, 2, bits)
    return quantise(normalised, by, bits), torch.cat(by, 2)


def decode_values(packed: Tensor, factors: Tensor, ranges: Tensor, bits: int) -> Tensor:
    """Invert `encode_values`."""
    return dequantise(packed, Range(*ranges.split(1, 2)), bits) * factors.float()[:, None]


def pack2(levels: Tensor) -> Tensor:
    """Pack levels uint8 [..., D], at most 3, to [..., D / 4]: two bytes of `pack` in one, half a vector apart."""
    first, second = pack(levels).chunk(2, -1)
    return first | second << 2


def unpack2(packed: Tensor) -> Tensor:
    """Invert `pack2`."""
    return unpack(torch.cat((packed & 0x33, packed >> 2 & 0x33), -1))


_PACK = {HIGH_BITS: pack, LOW_BITS: pack2}
_UNPACK = {HIGH_BITS: unpack, LOW_BITS: unpack2}
