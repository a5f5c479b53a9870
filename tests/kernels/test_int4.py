"""The encoding int4: bits, rounding, clipping and rotation, each worked out another way."""

import numpy as np
import pytest
import torch

from ringkv.kernels.int4 import decode, encode, pack
from ringkv.kernels.int8 import decode as decode_int8
from ringkv.kernels.int8 import encode as encode_int8
from tests.kernels.test_int8 import hadamard

WIDTHS = [32, 64, 96, 128, 80]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_rotated_element_is_within_half_a_scale_of_the_clipped_one(width: int) -> None:
    torch.manual_seed(0)
    vectors = torch.randn(100, width) * torch.logspace(-2, 2, 100)[:, None]
    packed, ranges = encode(vectors)
    rotated = vectors.double().numpy() @ hadamard(width)
    found = decode(packed, ranges).double().numpy() @ hadamard(width)
    scale = ranges[:, :1].double().numpy()
    low, high = (0.95 * extreme(rotated, 1, keepdims=True) for extreme in (np.min, np.max))
    np.testing.assert_allclose(scale, (high - low) / 15, rtol=2e-3)
    assert (np.abs(found - rotated.clip(low, high)) <= scale * 0.52).all()  # minima are rounded to 11 bits


def test_a_chunk_is_sixteen_words_of_four_nibbles() -> None:
    levels = torch.randint(0, 16, (96,), dtype=torch.uint8)
    words = pack(levels).view(torch.int16).int() & 0xFFFF
    for word in range(16):
        assert [int(words[word]) >> 4 * n & 15 for n in range(4)] == levels[word:64:16].tolist()
    for word in range(8):
        assert [int(words[16 + word]) >> 4 * n & 15 for n in range(4)] == levels[64 + word :: 8].tolist()


def test_zeros_stay_zeros_and_a_huge_vector_stays_finite() -> None:
    assert not decode(*encode(torch.zeros(2, 3, 32))).any()
    assert decode(*encode(torch.randn(1, 32) * 1e30)).isfinite().all()


@pytest.mark.parametrize("width", WIDTHS)
def test_one_large_channel_costs_no_more_than_a_spread_one(width: int) -> None:
    vectors = torch.randn(50, width)
    vectors[:, 7] += 100
    off, off_int8 = (
        (undo(*do(vectors)) - vectors).square().mean().sqrt()
        for do, undo in ((encode, decode), (encode_int8, decode_int8))
    )
    block = width & -width
    assert off < 200 / block**0.5 / 15  # half of the range is 100 / sqrt(block) after rotation
    assert off_int8 < off
