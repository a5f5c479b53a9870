"""Orthogonal: rotations of vectors by normalised Hadamard matrices, which spread an outlier over all elements.

Hadamard matrices, n x n of 1 and -1 with orthogonal rows, are constructed on demand. Orders that are not powers of two
come from Paley's constructions (1933) over a prime field. Products with Sylvester's matrices give their multiples by
powers of two.

n elements of a vector, in blocks of b; a block is m runs of 2^a elements.
"""

import math
from dataclasses import dataclass
from functools import cache
from math import isqrt

import torch
from torch import Tensor
from torch.nn.functional import pad

from ringkv.kernels.hadamard import butterflies
from ringkv.kernels.mix import signs

LARGEST = 512  # order of a matrix that is not a product


@cache
def core_order(size: int) -> int | None:
    """Return the order of the smallest matrix whose product with Sylvester's has this size; None if none is found."""
    power = size & -size
    odd = size // power
    orders = [1] if odd == 1 else [odd << bits for bits in range(2, power.bit_length()) if odd << bits <= LARGEST]
    return next((order for order in orders if _core(order) is not None), None)


def core(order: int) -> Tensor:
    """Return float64 [order, order] of an order that `core_order` returned."""
    matrix = _core(order)
    assert matrix is not None, f"no Hadamard matrix of order {order}"
    return matrix


@cache
def _core(order: int) -> Tensor | None:
    if order == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    if _is_prime(order - 1):  # which leaves 3 modulo 4
        return torch.eye(order, dtype=torch.float64) + _bordered(_jacobsthal(order - 1), -1.0)
    half = order // 2 - 1
    return _second_paley(half) if half % 4 == 1 and _is_prime(half) else None


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, isqrt(number) + 1))


def _jacobsthal(prime: int) -> Tensor:
    """Return [prime, prime] of the quadratic character of row - column."""
    squares = {number**2 % prime for number in range(1, prime)}
    signs = (1.0 if number in squares else -1.0 for number in range(1, prime))
    index = torch.arange(prime)
    return torch.tensor([0.0, *signs], dtype=torch.float64)[(index[:, None] - index) % prime]


def _bordered(matrix: Tensor, sign: float) -> Tensor:
    """Return the matrix with a row of ones before its rows, and a column of `sign` before its columns."""
    bordered = pad(matrix, (1, 0, 1, 0))
    bordered[0, 1:], bordered[1:, 0] = 1.0, sign
    return bordered


def _second_paley(prime: int) -> Tensor:
    """Return order 2 (prime + 1), of a prime that leaves 1 modulo 4."""
    conference, identity = _bordered(_jacobsthal(prime), 1.0), torch.eye(prime + 1, dtype=torch.float64)
    plus, minus = torch.tensor([[1.0, 1], [1, -1]]).double(), torch.tensor([[1.0, -1], [-1, -1]]).double()
    return torch.kron(conference, plus) + torch.kron(identity, minus)


@dataclass(frozen=True)
class Orthogonal:
    """The matrix diag(signs) (I (x) H_m (x) H_2^a) D / sqrt(b), n x n, with the signs D of `kernels.mix` in each block.

    m: `core_order` of the block. A block is the whole vector if a matrix of that size is found; else it
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
