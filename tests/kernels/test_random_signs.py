"""Random signs: the same for a width, others for another one, and no pattern that a rotation gathers."""

from itertools import pairwise

import pytest
import torch

from ringkv.kernels.hadamard import rotate
from ringkv.kernels.random_signs import random_signs

WIDTHS = [32, 64, 96, 128, 80, 256, 512]


@pytest.mark.parametrize("width", WIDTHS)
def test_signs_are_spread_as_random_ones_are(width: int) -> None:
    signs = random_signs(width)
    assert signs.square().eq(1).all()
    assert signs.sum().abs() < 3 * width**0.5
    assert rotate(signs).abs().max() < 4  # each element is close to a sample of N(0, 1); of a pattern one is large


def test_widths_have_signs_of_their_own() -> None:
    for width, other in pairwise(WIDTHS):
        least = min(width, other)
        assert (random_signs(width)[:least] * random_signs(other)[:least]).sum().abs() < 3 * least**0.5


def test_signs_never_change_since_stored_keys_need_them() -> None:
    signs = "".join("+-"[int(sign < 0)] for sign in random_signs(32))
    assert signs == "---++--++---+--+++-+-++++-+--++-"
    assert torch.equal(random_signs(32), random_signs(32))
