"""Hadamard rotations of vectors.

D elements of a vector.
"""

import math

import torch
from torch import Tensor


def rotate(vectors: Tensor) -> Tensor:
    """Multiply float32 [..., D] by a Hadamard matrix, which is its own inverse, per block.

    A block has the largest power of two elements that divides D.
    """
    block = vectors.shape[-1] & -vectors.shape[-1]
    return butterflies(vectors, block) * (1 / math.sqrt(block))


def butterflies(vectors: Tensor, block: int) -> Tensor:
    """Multiply float32 [..., D] by a Hadamard matrix of 1 and -1, per block of this power of two elements."""
    rotated: Tensor = vectors.unflatten(-1, (-1, block))
    half = 1
    while half < block:
        first, second = rotated.unflatten(-1, (-1, 2, half)).unbind(-2)
        rotated = torch.stack((first + second, first - second), -2).flatten(-3)
        half *= 2
    return rotated.flatten(-2)
