"""e4m3 rounding against the nearest of all 256 codes, worked out from their bits."""

import numpy as np
import torch

from ringkv.kernels.decode_attend_fp8 import decode, encode


def codes() -> np.ndarray:
    """Return the finite values of e4m3, from sign, exponent and mantissa."""
    bits = np.arange(127)
    exponent, mantissa = bits >> 3, bits & 7
    magnitudes = np.where(exponent > 0, 2.0 ** (exponent - 7) * (1 + mantissa / 8), 2.0**-6 * mantissa / 8)
    return np.concatenate((-magnitudes[::-1], magnitudes))


def test_each_element_becomes_the_nearest_code_times_the_scale() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(200, 64) * torch.logspace(-3, 3, 200)[:, None]
    quantised, scales = encode(vectors)
    found, scale = decode(quantised, scales).double().numpy(), scales.double().numpy()[:, None]
    off = np.abs(codes() - (vectors.double().numpy() / scale)[..., None]).min(-1)
    np.testing.assert_allclose(np.abs(found / scale - vectors.double().numpy() / scale), off, atol=1e-5)
    largest = vectors.abs().amax(-1).double().numpy()
    np.testing.assert_allclose(scale[:, 0], np.maximum(largest / 448, 2.0**-14), rtol=2.0**-11)


def test_zeros_stay_zeros_and_a_huge_vector_stays_finite() -> None:
    assert not decode(*encode(torch.zeros(2, 3, 32))).any()
    assert decode(*encode(torch.full((1, 32), 1e30))).isfinite().all()
    assert decode(*encode(torch.full((1, 32), torch.nan))).isnan().all()
