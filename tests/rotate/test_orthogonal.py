"""Rotations against explicit matrices."""

import pytest
import torch
from torch import Tensor

from ringkv.kernels.mix import signs
from ringkv.rotate.orthogonal import Orthogonal, core, core_order


def explicit(rotation: Orthogonal) -> Tensor:
    """Return the matrix [n, n] as products of its factors."""
    order = core_order(rotation.block)
    assert order
    matrix = core(order)
    while len(matrix) < rotation.block:
        matrix = torch.kron(matrix, torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double())
    matrix = matrix * signs(rotation.block, matrix)
    whole = torch.block_diag(*[matrix] * (rotation.size // rotation.block)) / rotation.block**0.5
    return whole if rotation.signs is None else rotation.signs[:, None] * whole


@pytest.mark.parametrize(("size", "block"), [(64, 64), (80, 80), (96, 96), (144, 144), (56, 56), (70, 2), (7, 1)])
@pytest.mark.parametrize("seed", [None, 3])
def test_rows_are_multiplied_by_an_orthogonal_matrix(size: int, block: int, seed: int | None) -> None:
    rotation, rows = Orthogonal.of(size, seed), torch.randn(5, 2, size, dtype=torch.float64)
    matrix = explicit(rotation)
    assert rotation.block == block
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(size, dtype=torch.float64), atol=1e-14, rtol=0)
    torch.testing.assert_close(rotation.rotated(rows), rows @ matrix, atol=1e-13, rtol=0)


def test_a_seed_gives_the_same_signs_again() -> None:
    rows = torch.randn(4, 48, dtype=torch.float64)
    assert torch.equal(Orthogonal.of(48, 1).rotated(rows), Orthogonal.of(48, 1).rotated(rows))
    assert not torch.equal(Orthogonal.of(48, 1).rotated(rows), Orthogonal.of(48, 2).rotated(rows))
