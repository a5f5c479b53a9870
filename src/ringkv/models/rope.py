"""rope: the rotary frequencies of a checkpoint, plain or scaled to a longer context.

D head_dim. A wavelength is the number of positions in which a pair rotates once.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ringkv.models.layer import RopeConfig


def frequencies(rope: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """Return the angles per position, float32 [D / 2], and the factor on cosine and sine."""
    plain = rope.theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    return _SCALINGS[rope.kind](rope, plain, head_dim)


def _default(rope: RopeConfig, plain: Tensor, head_dim: int) -> tuple[Tensor, float]:
    return plain, 1.0


def _linear(rope: RopeConfig, plain: Tensor, head_dim: int) -> tuple[Tensor, float]:
    """Position interpolation (arXiv 2306.15595)."""
    return plain / rope.factor, 1.0


def _llama3(rope: RopeConfig, plain: Tensor, head_dim: int) -> tuple[Tensor, float]:
    """Llama 3.1: scale long wavelengths, keep short ones, blend those between."""
    rotations = rope.original_context / (2 * math.pi / plain)  # within the original context
    smooth = ((rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1)
    return smooth * plain + (1 - smooth) * plain / rope.factor, 1.0


def _yarn(rope: RopeConfig, plain: Tensor, head_dim: int) -> tuple[Tensor, float]:
    """YaRN (arXiv 2309.00071): interpolate slow pairs, keep fast ones, blend those between, and scale attention."""

    def pair(rotations: float) -> float:  # the pair that rotates so often within the original context
        return head_dim * math.log(rope.original_context / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair(rope.beta_fast), pair(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    return (1 - ramp) * plain + ramp * plain / rope.factor, _yarn_temperature(rope)


def _yarn_temperature(rope: RopeConfig) -> float:
    def temperature(weight: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * weight * math.log(rope.factor) + 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return temperature(rope.mscale) / temperature(rope.mscale_all_dim)
    return temperature(1.0)


_SCALINGS: dict[str, Callable[[RopeConfig, Tensor, int], tuple[Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
