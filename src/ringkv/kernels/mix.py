"""mix: a Hadamard rotation of a decoder's activations, as one operator: the weights after it were rotated before.

M rows, K elements of a row. Elements at a distance of `stride` are mixed in blocks of a power of two, b elements each:

    y = x H D / sqrt(b)     D: the Rudin-Shapiro sequence

Formats of 8 and 4 bits rotate by Sylvester's matrices again, in smaller blocks. Without D they would undo a part of H;
with it the product is a rotation whose elements have nearly equal magnitudes.
"""

import math

import torch
from torch import Tensor

from ringkv.kernels.hadamard import butterflies
from ringkv.kernels.library import like_first, register


def hadamard(x: Tensor, block: int, stride: int = 1) -> Tensor:
    """Return x [M, K], rotated, in x's dtype; sums are float32. K is a multiple of block * stride."""
    out: Tensor = torch.ops.ringkv.hadamard(x, block, stride)
    return out


def reference(x: Tensor, block: int, stride: int) -> Tensor:
    """Implement `hadamard` in plain torch."""
    return mixed(x.float(), block, stride).to(x.dtype)


def mixed(x: Tensor, block: int, stride: int = 1) -> Tensor:
    """Return x [M, K], rotated in its own precision."""
    strided = x.unflatten(1, (-1, block, stride)).transpose(2, 3)
    rotated: Tensor = butterflies(strided, block) * (signs(block, x) * (1 / math.sqrt(block)))
    return rotated.transpose(2, 3).flatten(1)


def signs(count: int, like: Tensor) -> Tensor:
    """Return the Rudin-Shapiro sequence [count], of 1 and -1: whether i has "11" in binary an even number of times."""
    at = torch.arange(count, device=like.device)
    pairs, parity = at & at >> 1, torch.zeros_like(at)
    for bit in range(count.bit_length()):
        parity ^= pairs >> bit & 1
    return (1 - 2 * parity).to(like.dtype)


register("hadamard", reference, like_first)
