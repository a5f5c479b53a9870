"""by_head of some rows against by_head of all."""

import pytest
import torch
from torch import Tensor

from ringkv.kernels.by_head import by_head, by_head_among
from ringkv.kernels.formats import FORMATS
from tests.kernels.products import random_bf16

HEADS, OUT, INNER = 3, 64, 96


def matrices(weights: str | None) -> Tensor:
    each = [random_bf16(OUT, INNER) for _ in range(HEADS)]
    return torch.cat([FORMATS[weights].pack(one) for one in each]) if weights else torch.cat(each).float()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("weights", [None, "bf16", "int8", "int4"])
@pytest.mark.parametrize("count", [8, 40])
def test_some_rows_have_the_bits_that_they_have_among_all(weights: str | None, count: int) -> None:
    """Up to 8 rows of int4 round differently from more, so 5 of 40 must round as 40 do."""
    x, weight = random_bf16(count, HEADS, INNER), matrices(weights)
    rows = torch.tensor([7, 0, 3, 4, 6])
    assert torch.equal(by_head_among(x[rows], weight, rows, count), by_head(x, weight)[rows])
