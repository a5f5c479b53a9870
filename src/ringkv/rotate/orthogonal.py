"""Orthogonal: rotations of vectors by normalised Hadamard matrices, which spread an outlier over all elements.

n elements of a vector, in blocks of b; a block is m runs of 2^a elements.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ringkv.kernels.hadamard import butterflies
from ringkv.kernels.mix import signs
from ringkv.rotate.hadamard_matrix import core, core_order


@dataclass(frozen=True)
class Orthogonal:
    """The matrix diag(signs) (I (x) H_m (x) H_2^a) D / sqrt(b), n x n, with the signs D of `kernels.mix` in each block.

    m: `hadamard_matrix.core_order` of the block. A block is the whole vector if a matrix of that size is found; else it
    has the largest power of two that divides n. signs: float64 [n] of 1 and -1; None is ones.
    """

    size: int
    block: int
    signs: Tensor | None = None

    @classmethod
    def of(cls, size: int, seed: int | None = None) -> "Orthogonal":
        """Return a rotation of vectors of `size` elements; with random signs if there is a seed."""
        block = size if core_order(size) else size & -size
        if seed is None:
            return cls(size, block)
        signs = torch.randint(2, (size,), generator=torch.Generator().manual_seed(seed)).double() * 2 - 1
        return cls(size, block, signs)

    def rotated(self, vectors: Tensor) -> Tensor:
        """Multiply rows, float64 [..., n], by the matrix."""
        order = core_order(self.block)
        assert order
        signed = vectors if self.signs is None else vectors * self.signs
        runs = butterflies(signed.unflatten(-1, (-1, self.block // order)), self.block // order)
        mixed = torch.einsum("...gmr,mk->...gkr", runs.unflatten(-2, (-1, order)), core(order))
        return (mixed.flatten(-2) * (signs(self.block, vectors) * (1 / math.sqrt(self.block)))).flatten(-2)
