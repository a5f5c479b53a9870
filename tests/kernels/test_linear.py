"""The C++ product for a few rows against one in float64."""

import pytest
import torch

from ringkv.base.compiler import find_compiler
from ringkv.base.paths import cache_dir
from ringkv.kernels import native
from ringkv.kernels.linear import FEW, linear

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.fixture(autouse=True)
def _native() -> None:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler on this machine")
    native.load(compiler.path, cache_dir() / "kernels")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows", [1, 2, 3, FEW, FEW + 1])
@pytest.mark.parametrize(("out", "inner"), [(7, 64), (300, 192), (64, 576)])
def test_rows_are_multiplied_and_the_bias_added(dtype: torch.dtype, rows: int, out: int, inner: int) -> None:
    x, weight, bias = (torch.randn(shape).to(dtype) for shape in ((rows, inner), (out, inner), (out,)))
    want = x.double() @ weight.double().T
    close = {"atol": TOLERANCE[dtype] * inner**0.5, "rtol": TOLERANCE[dtype]}
    torch.testing.assert_close(linear(x, weight).double(), want, **close)
    torch.testing.assert_close(linear(x, weight, bias).double(), want + bias.double(), **close)


def test_a_row_does_not_depend_on_the_others_bit_for_bit() -> None:
    x, weight = torch.randn(FEW, 576), torch.randn(500, 576)
    together = linear(x, weight)
    for row in range(FEW):
        assert torch.equal(linear(x[row : row + 1], weight)[0], together[row])
    x[0] = float("nan")
    again = linear(x, weight)
    assert again[0].isnan().all()
    assert torch.equal(again[1:], together[1:])
