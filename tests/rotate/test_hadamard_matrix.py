"""Hadamard matrices of every size that models have."""

import pytest
import torch

from ringkv.rotate.orthogonal import core, core_order

ORDERS = (1, 12, 20, 28, 36, 44, 60, 76, 104, 108, 140, 148, 368)


@pytest.mark.parametrize("order", ORDERS)
def test_rows_of_ones_and_minus_ones_are_orthogonal(order: int) -> None:
    matrix = core(order)
    assert set(matrix.unique().tolist()) <= {1.0, -1.0}
    assert torch.equal(matrix @ matrix.T, order * torch.eye(order, dtype=torch.float64))


@pytest.mark.parametrize(
    ("size", "order"),
    [(4096, 1), (576, 36), (1536, 12), (896, 28), (8960, 140), (3584, 28), (6656, 104), (18944, 148), (2560, 20)],
)
def test_sizes_of_published_models_are_products_of_a_core_and_a_power_of_two(size: int, order: int) -> None:
    assert core_order(size) == order


@pytest.mark.parametrize("size", [3, 6, 14, 35, 2 * 4093, 11008])
def test_sizes_that_four_does_not_divide_and_those_without_a_construction_have_none(size: int) -> None:
    assert core_order(size) is None
