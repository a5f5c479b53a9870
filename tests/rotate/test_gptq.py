"""GPTQ against rounding to nearest."""

import pytest
import torch

from ringkv.rotate import gptq
from ringkv.rotate.grid import Grid

GRIDS = [Grid(4, 32), Grid(4), Grid(8)]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_the_squared_output_error_is_below_that_of_rounding_to_nearest(grid: Grid) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(1000, 24) @ torch.randn(24, 160) + 0.3 * torch.randn(1000, 160)  # correlated
    weight = torch.randn(48, 160)

    def error(values: torch.Tensor) -> float:
        return float((inputs @ (values - weight).T).square().sum())

    found = gptq.rounded(weight, inputs.T @ inputs, grid)
    assert error(found.values) < 0.5 * error(grid.rounded(weight).values)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_inputs_that_do_not_correlate_leave_rounding_to_nearest(grid: Grid) -> None:
    torch.manual_seed(1)
    weight = torch.randn(16, 160)
    found, nearest = gptq.rounded(weight, torch.eye(160) * 7, grid), grid.rounded(weight)
    assert torch.equal(found.q, nearest.q)
    torch.testing.assert_close(found.levels, nearest.levels)


def test_an_input_that_is_always_zero_breaks_nothing() -> None:
    inputs = torch.randn(100, 64)
    inputs[:, 5] = 0
    assert gptq.rounded(torch.randn(4, 64), inputs.T @ inputs, Grid(4, 32)).values.isfinite().all()
