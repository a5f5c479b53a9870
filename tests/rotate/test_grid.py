"""Rounding to a grid."""

import pytest
import torch

from ringkv.rotate.grid import Grid


@pytest.mark.parametrize("grid", [Grid(4, 32), Grid(4), Grid(8)], ids=str)
def test_each_weight_becomes_the_nearest_value_of_its_group(grid: Grid) -> None:
    torch.manual_seed(0)
    weight = torch.randn(12, 96)
    rounded = grid.rounded(weight)
    scale = rounded.scale.repeat_interleave(96 // rounded.scale.shape[1], 1)
    values = torch.arange(grid.least, grid.most + 1) * scale[..., None]
    nearest = (weight[..., None] - values).abs().amin(-1)
    torch.testing.assert_close((weight - rounded.values).abs(), nearest, atol=1e-6, rtol=0)


@pytest.mark.parametrize("grid", [Grid(4, 32), Grid(4), Grid(8)], ids=str)
def test_clipping_is_never_worse_than_a_scale_by_the_largest(grid: Grid) -> None:
    torch.manual_seed(1)
    weight = torch.randn(40, 256)
    groups = weight.unflatten(1, (-1, grid.group or 256))
    largest = groups.abs().amax(-1) / grid.most
    plain = (grid.nearest(groups, largest) * largest[..., None]).flatten(1)
    errors = [(one - weight).square().sum() for one in (grid.rounded(weight).values, plain)]
    assert errors[0] <= errors[1] * (1 + 1e-3)  # scales of 4 bits are float16
    assert grid.bits == 8 or errors[0] < errors[1] * 0.95


def test_scales_of_four_bits_are_float16() -> None:
    scale = Grid(4, 32).rounded(torch.randn(8, 64)).scale
    assert torch.equal(scale, scale.half().float())


def test_a_row_of_zeros_stays_zero() -> None:
    rounded = Grid(4, 32).rounded(torch.zeros(2, 64))
    assert not rounded.values.any()
