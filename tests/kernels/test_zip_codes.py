"""Vectors in 4 and 2 bits, against the steps that their parameters give."""

import pytest
import torch

from ringkv.kernels import zip_codes as codes

BITS = [codes.HIGH_BITS, codes.LOW_BITS]


def vectors(n: int, width: int = 64) -> torch.Tensor:
    """Return [2, n, D] with channels of many sizes, some far from 0."""
    torch.manual_seed(1)
    return torch.randn(2, n, width) * torch.logspace(-2, 1, width) + torch.linspace(-5, 20, width)


@pytest.mark.parametrize("bits", BITS)
def test_a_key_is_off_by_at_most_half_a_step_of_its_channel(bits: int) -> None:
    x = vectors(33)
    packed, channels = codes.encode_keys(x, bits)
    assert packed.shape == (2, 33, 64 * bits // 8)
    off = (codes.decode_keys(packed, channels, bits) - x).abs()
    assert (off <= channels[:, :1].float() * 0.5001).all()
    spread = x.amax(1) - x.amin(1)
    assert (channels[:, 0].float() * (2**bits - 1) < spread * 1.01 + 0.05).all()


@pytest.mark.parametrize("bits", BITS)
def test_a_value_is_off_by_at_most_half_a_step_of_its_token_times_its_channels_factor(bits: int) -> None:
    x = vectors(33)
    factors = codes.value_factors(x)
    torch.testing.assert_close(factors.float(), x.abs().amax(1).sqrt(), rtol=1e-3, atol=0)
    packed, ranges = codes.encode_values(x, factors, bits)
    off = (codes.decode_values(packed, factors, ranges, bits) - x).abs()
    assert (off <= 0.5001 * ranges[..., :1].float() * factors.float()[:, None]).all()


@pytest.mark.parametrize("bits", BITS)
def test_an_outlier_channel_of_values_costs_the_others_less_than_scales_per_token_alone(bits: int) -> None:
    x = vectors(50) - torch.linspace(-5, 20, 64)
    factors = codes.value_factors(x)
    found = codes.decode_values(*swapped(codes.encode_values(x, factors, bits), factors), bits)
    ones = torch.ones_like(factors)
    alone = codes.decode_values(*swapped(codes.encode_values(x, ones, bits), ones), bits)
    small = slice(0, 32)
    assert (found - x)[..., small].square().mean() < 0.2 * (alone - x)[..., small].square().mean()


def swapped(encoded: tuple[torch.Tensor, torch.Tensor], factors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return encoded[0], factors, encoded[1]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("n", [0, 1, 5])
def test_zeros_and_no_tokens_at_all_are_decoded_to_what_they_were(bits: int, n: int) -> None:
    x = torch.zeros(2, n, 64)
    factors = codes.value_factors(x)
    keys = codes.decode_keys(*codes.encode_keys(x, bits), bits)
    values = codes.decode_values(*swapped(codes.encode_values(x, factors, bits), factors), bits)
    for found in (keys, values):
        assert found.shape == x.shape
        assert not found.any()


@pytest.mark.parametrize("width", [32, 64, 96, 128, 40])
def test_two_bits_unpack_to_the_levels_that_were_packed(width: int) -> None:
    levels = torch.randint(0, 4, (3, 5, width), dtype=torch.uint8)
    packed = codes.pack2(levels)
    assert packed.shape == (3, 5, width // 4)
    assert torch.equal(codes.unpack2(packed), levels)
