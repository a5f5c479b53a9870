"""mix: a Hadamard rotation of a decoder's activations, as one operator: the weights after it were rotated before.

M rows, K elements of a row. Elements at a distance of `stride` are mixed in blocks of a power of two.
"""

import math

import torch
from torch import Tensor
from torch.library import register_fake

from ringkv.kernels.hadamard import butterflies
from ringkv.kernels.library import LIBRARY


def hadamard(x: Tensor, block: int, stride: int = 1) -> Tensor:
    """Return x [M, K] times a normalised Hadamard matrix, which is its own inverse, in x's dtype; sums are float32.

    K is a multiple of block * stride.
    """
    out: Tensor = torch.ops.ringkv.hadamard(x, block, stride)
    return out


def reference(x: Tensor, block: int, stride: int) -> Tensor:
    """Implement `hadamard` in plain torch."""
    return mixed(x.float(), block, stride).to(x.dtype)


def mixed(x: Tensor, block: int, stride: int = 1) -> Tensor:
    """Return the same of x [M, K] in its own precision."""
    strided = x.unflatten(1, (-1, block, stride)).transpose(2, 3)
    rotated: Tensor = butterflies(strided, block) * (1 / math.sqrt(block))
    return rotated.transpose(2, 3).flatten(1)


def _shape(x: Tensor, block: int, stride: int) -> Tensor:
    return x.new_empty(x.shape)


LIBRARY.impl("hadamard", reference, "CompositeExplicitAutograd")
register_fake("ringkv::hadamard", _shape, lib=LIBRARY)
