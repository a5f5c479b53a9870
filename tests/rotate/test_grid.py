"""Rounding to a grid."""

import pytest
import torch

from ringkv.rotate.grid import Grid

GRIDS = [Grid(4, 32), Grid(4), Grid(8)]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_each_weight_becomes_the_nearest_value_of_its_group(grid: Grid) -> None:
    torch.manual_seed(0)
    weight = torch.randn(12, 96)
    rounded = grid.rounded(weight)
    scale, zero = (one.repeat_interleave(96 // one.shape[1], 1)[..., None] for one in rounded.levels)
    values = (torch.arange(grid.smallest, grid.largest + 1) - zero) * scale
    nearest = (weight[..., None] - values).abs().amin(-1)
    torch.testing.assert_close((weight - rounded.values).abs(), nearest, atol=1e-6, rtol=0)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_searched_levels_are_better_than_those_of_the_whole_range(grid: Grid) -> None:
    torch.manual_seed(1)
    weight = torch.randn(40, 256)
    groups = weight.unflatten(1, (-1, grid.group or 256))
    scale = groups.abs().amax(-1, keepdim=True) / grid.largest
    plain = (groups / scale).round() * scale
    if grid.group:
        low = groups.amin(-1, keepdim=True)
        scale = (groups.amax(-1, keepdim=True) - low) / 15
        plain = ((groups - low) / scale).round() * scale + low
    errors = [(one - weight).square().sum() for one in (grid.rounded(weight).values, plain.flatten(1))]
    assert errors[0] < errors[1] * {32: 0.99, None: 0.97 if grid.bits == 4 else 1.0001}[grid.group]


def test_minimums_of_groups_are_exact_in_float16() -> None:
    torch.manual_seed(2)
    scale, zero = Grid(4, 32).rounded(torch.randn(64, 64) * torch.logspace(-6, 3, 64)[:, None] + 0.01).levels
    minimum = -scale * (zero + 8)
    assert torch.equal(scale, scale.half().float())
    assert torch.equal(minimum, minimum.half().float())


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_row_of_zeros_stays_zero(grid: Grid) -> None:
    assert not grid.rounded(torch.zeros(2, 64)).values.any()


@pytest.mark.parametrize("sign", [1, -1])
def test_a_group_on_one_side_of_zero_is_in_range(sign: int) -> None:
    weight = sign * torch.linspace(1, 2, 64).expand(4, 64)
    assert (Grid(4, 32).rounded(weight).values - weight).abs().max() < 0.08
