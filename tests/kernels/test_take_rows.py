"""Rows that a compressed prompt keeps: the C++ kernel and the reference against indexing, row by row."""

from collections.abc import Callable

import pytest
import torch

from ringkv.kernels import take_rows
from ringkv.kernels.library import is_native


@pytest.fixture(params=["reference", "native"])
def take(request: pytest.FixtureRequest) -> Callable[..., None]:
    if request.param == "reference":
        return take_rows.reference
    request.getfixturevalue("compiled")
    assert is_native("take_rows")
    return take_rows.take_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kept", "capacity", "width"), [(0, 3, 64), (5, 5, 24), (37, 40, 64), (1030, 1100, 32)])
def test_each_entry_is_the_staged_token_that_it_names(
    take: Callable[..., None], dtype: torch.dtype, kept: int, capacity: int, width: int
) -> None:
    torch.manual_seed(kept)
    layers, lanes, heads, staged_tokens, lane = 2, 3, 2, 1200, 1
    staged = torch.randn(layers, lanes, heads, staged_tokens, width).to(dtype)
    source = torch.randint(staged_tokens, (layers, heads, kept))
    want = torch.zeros(layers, heads, capacity, width, dtype=dtype)
    for layer in range(layers):
        for head in range(heads):
            for i in range(kept):
                want[layer, head, i] = staged[layer, lane, head, source[layer, head, i]]
    slots = torch.full((layers, 2, heads, capacity, width), float("nan"), dtype=dtype)
    take(staged, lane, source, slots[:, 1])
    assert torch.equal(slots[:, 1], want)
    assert slots[:, 0].isnan().all()


def test_entries_may_begin_anywhere(take: Callable[..., None]) -> None:
    staged, slot = torch.randn(1, 1, 1, 9, 16), torch.full((3 * 16 + 1,), 7.0)
    take(staged, 0, torch.tensor([[[8, 2, 5]]]), slot[1:].view(1, 1, 3, 16))
    assert torch.equal(slot[1:].view(3, 16), staged[0, 0, 0, [8, 2, 5]])
    assert slot[0] == 7.0


@pytest.mark.usefixtures("compiled")
def test_a_token_that_is_not_staged_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no staged token 7"):
        take_rows.take_rows(torch.zeros(1, 1, 1, 7, 8), 0, torch.tensor([[[0, 7]]]), torch.zeros(1, 1, 2, 8))
