"""Packing: the order in which the CPU's matrix units take a weight.

A strip is 16 outputs; it lies as blocks of 32 inner numbers, each [16 pairs, 16 outputs, 2]: one block is one AMX tile
of the right operand, and its rows are what the bfloat16 dot products of AVX-512 take. One copy serves prefill, decode
and the embedding, so weights are held once. `quantize` stores the same blocks in fewer bits.
"""

import torch
from torch import Tensor

from ringkv.kernels.library import is_native

WIDE = 16  # outputs in a strip
DEEP = 32  # inner numbers in a block
_TWICE = {2: torch.int32, 1: torch.int16}  # a type for pairs of numbers of so many bytes


def is_whole(weight: Tensor) -> bool:
    """Bfloat16 matrices on the CPU whose sides are whole pairs of strips, and blocks."""
    whole = weight.dim() == 2 and weight.shape[0] % (2 * WIDE) == 0 and weight.shape[1] % DEEP == 0
    return whole and weight.dtype == torch.bfloat16 and weight.device.type == "cpu"


def can_pack(weight: Tensor) -> bool:
    """Whole matrices, where the C++ operators are loaded."""
    return is_whole(weight) and is_native("linear")


def fits_tiles(x: Tensor, operator: str) -> bool:
    """Whether the C++ operator of this name is there and takes such numbers: bfloat16 rows of whole blocks."""
    return x.device.type == "cpu" and x.dtype == torch.bfloat16 and x.shape[-1] % DEEP == 0 and is_native(operator)


def pack(weight: Tensor) -> Tensor:
    """[out, in] -> [out / 16, in / 32, 16, 16, 2]; numbers of 16 or 8 bits."""
    return _in_blocks(_pairs(weight).unflatten(0, (-1, WIDE)), weight.dtype)


def pack_gated(weight: Tensor) -> Tensor:
    """The same for gate and up stacked, [2 * wide, in]: a strip of gates is followed by the strip of their ups."""
    return _in_blocks(_pairs(weight).unflatten(0, (2, -1, WIDE)).transpose(0, 1), weight.dtype).flatten(0, 1)


def _pairs(weight: Tensor) -> Tensor:
    """[out, in] -> [out, in / 32, 16]: a pair moves as one number, which halves the time to pack a model."""
    pairs: Tensor = weight.view(_TWICE[weight.itemsize]).unflatten(1, (-1, DEEP // 2))
    return pairs


def _in_blocks(strips: Tensor, dtype: torch.dtype) -> Tensor:
    """Pairs [..., 16 outputs, in / 32, 16 pairs] -> [..., in / 32, 16 pairs, 16 outputs, 2], the only copy."""
    blocks: Tensor = strips.movedim(-3, -1).contiguous().view(dtype).unflatten(-1, (WIDE, 2))
    return blocks


def unpack(packed: Tensor) -> Tensor:
    """The inverse of `pack`; blocks of any type of number."""
    strips, blocks = packed.shape[:2]
    return packed.permute(0, 3, 1, 2, 4).reshape(strips * WIDE, blocks * DEEP)


def packed_rows(packed: Tensor, rows: Tensor) -> Tensor:
    """Rows of what `pack` was given: int [N] -> [N, in]."""
    return packed[rows // WIDE, :, :, rows % WIDE].flatten(1)
