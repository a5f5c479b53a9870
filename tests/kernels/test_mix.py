"""hadamard: the C++ kernel and the reference, against an explicit matrix."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from ringkv.kernels import mix
from ringkv.kernels.hadamard import rotate
from ringkv.kernels.library import is_native


@pytest.fixture(params=["reference", "native"])
def hadamard(request: pytest.FixtureRequest) -> Callable[..., Tensor]:
    if request.param == "reference":
        return mix.reference
    request.getfixturevalue("compiled")
    assert is_native("hadamard")
    return mix.hadamard


def explicit(width: int, block: int, stride: int) -> Tensor:
    """Return the matrix [width, width]."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < block:
        matrix = torch.kron(matrix, torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double())
    signs = torch.tensor([(-1.0) ** sum(a == b == "1" for a, b in pairwise(f"{at:b}")) for at in range(block)]).double()
    strided = torch.kron(matrix * signs / block**0.5, torch.eye(stride, dtype=torch.float64))
    return torch.block_diag(*[strided] * (width // len(strided)))


SHAPES = [(64, 64, 1), (96, 32, 1), (80, 16, 1), (7, 1, 1), (96, 2, 8), (240, 4, 20), (512, 4, 64), (24, 2, 3)]


@pytest.mark.parametrize(("width", "block", "stride"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_are_multiplied_by_a_hadamard_matrix(
    hadamard: Callable[..., Tensor], width: int, block: int, stride: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(width)
    x = torch.randn(5, width).to(dtype)
    want = (x.double() @ explicit(width, block, stride)).to(dtype)
    torch.testing.assert_close(hadamard(x, block, stride), want, atol=1e-6, rtol=2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize(("width", "block", "stride"), SHAPES)
def test_a_row_has_the_same_bits_among_others(
    hadamard: Callable[..., Tensor], width: int, block: int, stride: int
) -> None:
    x = torch.randn(33, width)
    assert torch.equal(hadamard(x[7:8], block, stride), hadamard(x, block, stride)[7:8])


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("width", "block", "stride"), SHAPES)
def test_the_kernel_has_the_references_bits(width: int, block: int, stride: int) -> None:
    x = torch.randn(3, width, dtype=torch.bfloat16)
    assert torch.equal(mix.hadamard(x, block, stride), mix.reference(x, block, stride))


@pytest.mark.parametrize("block", [32, 64, 128])
def test_a_second_rotation_in_smaller_blocks_still_spreads_an_outlier(block: int) -> None:
    """Products of int8 rotate blocks of 32; int4 caches rotate heads. Both follow rotations of values by us."""
    outlier = torch.eye(512)[77:78]
    twice = rotate(mix.reference(outlier, 512, 1).view(-1, block))
    assert twice.abs().max() <= 2 * 512**-0.5
    without = rotate(rotate(outlier).view(-1, block))
    assert without.abs().max() >= (512 / block) ** -0.5 * 0.99
