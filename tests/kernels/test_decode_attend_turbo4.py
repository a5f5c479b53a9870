"""4-bit keys from a codebook: the codebook, errors and norms, each worked out another way."""

import math

import numpy as np
import pytest
import torch

from ringkv.kernels.decode_attend_int4 import unpack
from ringkv.kernels.decode_attend_turbo4 import LEVELS, UNIT, decode, encode
from ringkv.kernels.random_signs import random_signs
from tests.kernels.test_decode_attend_int8 import hadamard

WIDTHS = [32, 64, 96, 128, 80]
GRID = np.linspace(-8, 8, 20_001)
DENSITY = np.exp(-(GRID**2) / 2) / np.exp(-(GRID**2) / 2).sum()


def nearest(levels: np.ndarray) -> np.ndarray:
    """Return which level each point of the grid is nearest to."""
    return np.searchsorted((levels[1:] + levels[:-1]) / 2, GRID)


def squared_error(levels: np.ndarray) -> float:
    return float((DENSITY * (levels[nearest(levels)] - GRID) ** 2).sum())


def lloyd() -> np.ndarray:
    """Return the 16 levels of least squared error for N(0, 1): each is the mean of the points nearest to it."""
    levels = np.linspace(-2.5, 2.5, 16)
    for _ in range(1000):
        place = nearest(levels)
        levels = np.bincount(place, DENSITY * GRID) / np.bincount(place, DENSITY)
    return levels


def test_levels_are_those_of_lloyd_and_max_in_the_best_unit() -> None:
    best, levels = lloyd(), np.array(LEVELS)
    assert squared_error(best) == pytest.approx(0.0095, abs=5e-6)
    assert squared_error(levels / UNIT) == pytest.approx(squared_error(best), rel=1e-3)
    assert levels.tolist() == np.rint(best * UNIT).tolist()
    units = np.arange(8, 127 / best[-1], 0.125)
    errors = [squared_error(np.rint(best * unit) / unit) for unit in units]
    assert units[np.argmin(errors)] == UNIT


@pytest.mark.parametrize("width", WIDTHS)
def test_an_element_becomes_the_nearest_level_of_its_norm(width: int) -> None:
    torch.manual_seed(0)
    vectors = torch.randn(100, width) * torch.logspace(-2, 2, 100)[:, None]
    packed, norms = encode(vectors)
    rotated = vectors.double().numpy() * random_signs(width).double().numpy() @ hadamard(width)
    unit = rotated / np.linalg.norm(rotated, axis=1, keepdims=True) * (UNIT * math.sqrt(width))
    off = np.abs(unit[..., None] - LEVELS)
    chosen = np.take_along_axis(off, unpack(packed).long().numpy()[..., None], -1)[..., 0]
    np.testing.assert_allclose(chosen, off.min(-1), atol=1e-3)
    levels = np.array(LEVELS)[unpack(packed).long().numpy()]
    found = decode(packed, norms).double().numpy() * random_signs(width).double().numpy() @ hadamard(width)
    each = norms.double().numpy()[:, None] / (UNIT * math.sqrt(width))
    np.testing.assert_allclose(found, levels * each, rtol=1e-5, atol=1e-5 * each.max())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("large", [0.0, 100.0])
def test_norms_stay_and_errors_are_those_of_the_codebook(width: int, large: float) -> None:
    """Whatever the vectors: one channel may be much larger than the others."""
    torch.manual_seed(0)
    vectors = torch.randn(4000, width)
    vectors[:, 7] += large
    vectors *= torch.logspace(-3, 2, 4000)[:, None]
    found, norms = decode(*encode(vectors)), vectors.norm(dim=-1)
    torch.testing.assert_close(found.norm(dim=-1), norms, rtol=2**-10, atol=0)
    error = ((found - vectors).norm(dim=-1) / norms).square().mean()
    is_spread = width & (width - 1) == 0 or not large  # else blocks without the large channel have small elements
    assert error < (0.01 if is_spread else 0.02)


def test_zeros_stay_zeros_and_a_huge_vector_stays_finite() -> None:
    assert not decode(*encode(torch.zeros(2, 3, 32))).any()
    assert decode(*encode(torch.full((2, 32), 1e-40))).isfinite().all()
    assert decode(*encode(torch.randn(1, 32) * 1e30)).isfinite().all()
    assert decode(*encode(torch.full((1, 32), torch.nan))).isnan().all()
