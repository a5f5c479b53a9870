"""The encoding int8: rounding and rotation, each worked out another way."""

import numpy as np
import pytest
import torch

from ringkv.kernels.int8 import decode, encode


def hadamard(width: int) -> np.ndarray:
    """Return [width, width] by Sylvester's construction: blocks of the largest power of two that divides the width."""
    block = np.ones((1, 1))
    while width % (2 * len(block)) == 0:
        block = np.kron([[1, 1], [1, -1]], block)
    return np.kron(np.eye(width // len(block)), block / np.sqrt(len(block)))


@pytest.mark.parametrize("width", [32, 64, 96, 128, 80])
def test_a_rotated_element_is_within_half_a_scale(width: int) -> None:
    torch.manual_seed(0)
    vectors = torch.randn(100, width) * torch.logspace(-2, 2, 100)[:, None]
    elements, scales = encode(vectors)
    rotated = vectors.double().numpy() @ hadamard(width)
    stored = (elements.double() * scales[:, None].double()).numpy()
    np.testing.assert_allclose(scales, np.abs(rotated).max(-1) / 127, rtol=1e-5)
    assert (np.abs(stored - rotated) <= scales[:, None].double().numpy() * 0.501).all()
    found = decode(elements, scales).double().numpy() @ hadamard(width)
    np.testing.assert_allclose(found, stored, rtol=1e-4, atol=1e-4)


def test_one_large_channel_does_not_coarsen_the_others() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(50, 128)
    vectors[:, 7] += 100
    off = (decode(*encode(vectors)) - vectors).square().mean().sqrt()
    assert off < 100 / 127 / 12**0.5 / 7  # without rotation it would be 100 / 127 / sqrt(12)


def test_a_vector_of_zeros_and_its_scale_are_zeros() -> None:
    whole, scales = encode(torch.zeros(2, 3, 32))
    assert not whole.any()
    assert not scales.any()
    assert not decode(whole, scales).any()
