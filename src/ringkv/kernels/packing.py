"""Packing: the order in which the CPU's matrix units take a weight.

A strip is 16 outputs; it lies as blocks of 32 inner numbers, each [16 pairs, 16 outputs, 2]: one block is one AMX tile
of the right operand, and its rows are what the bfloat16 dot products of AVX-512 take. One copy serves prefill, decode
and the embedding, so weights are held once.
"""

import torch
from torch import Tensor

from ringkv.kernels.library import is_native

WIDE = 16  # outputs in a strip
DEEP = 32  # inner numbers in a block


def can_pack(weight: Tensor) -> bool:
    """Bfloat16 matrices on the CPU whose sides are whole strips and blocks, where the C++ operators are loaded."""
    whole = weight.dim() == 2 and weight.shape[0] % (2 * WIDE) == 0 and weight.shape[1] % DEEP == 0
    return whole and weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and is_native("linear")


def pack(weight: Tensor) -> Tensor:
    """[out, in] -> [out / 16, in / 32, 16, 16, 2]."""
    return _in_blocks(_pairs(weight).unflatten(0, (-1, WIDE)))


def pack_gated(weight: Tensor) -> Tensor:
    """The same for gate and up stacked, [2 * wide, in]: a strip of gates is followed by the strip of their ups."""
    return _in_blocks(_pairs(weight).unflatten(0, (2, -1, WIDE)).transpose(0, 1)).flatten(0, 1)


def _pairs(weight: Tensor) -> Tensor:
    """[out, in] -> int32 [out, in / 32, 16]: a pair moves as one number, which halves the time to pack a model."""
    pairs: Tensor = weight.view(torch.int32).unflatten(1, (-1, DEEP // 2))
    return pairs


def _in_blocks(strips: Tensor) -> Tensor:
    """int32 [..., 16 outputs, in / 32, 16 pairs] -> bfloat16 [..., in / 32, 16 pairs, 16 outputs, 2], the only copy."""
    blocks: Tensor = strips.movedim(-3, -1).contiguous().view(torch.bfloat16).unflatten(-1, (WIDE, 2))
    return blocks


def unpack(packed: Tensor) -> Tensor:
    """The inverse of `pack`."""
    strips, blocks = packed.shape[:2]
    return packed.permute(0, 3, 1, 2, 4).reshape(strips * WIDE, blocks * DEEP)


def unpack_gated(packed: Tensor) -> Tensor:
    """The inverse of `pack_gated`."""
    strips = packed.unflatten(0, (-1, 2))
    return torch.cat([unpack(half) for half in strips.unbind(1)])


def rows_of(weight: Tensor, rows: Tensor) -> Tensor:
    """Rows of a matrix, plain or packed, as an embedding looks them up: int [N] -> [N, in]."""
    return weight[rows] if weight.dim() == 2 else weight[rows // WIDE, :, :, rows % WIDE].flatten(1)
