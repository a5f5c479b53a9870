"""rope: the rotary frequencies of a checkpoint, plain or scaled to a longer context.

D elements of a head that rotate. A wavelength is the number of positions in which a pair rotates once.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ringkv.models.layer import RopeConfig, yarn_temperature


def frequencies(rope: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """Return the angles per position, float32 [D / 2], and the factor on cosine and sine."""
    width = rope.width or head_dim
    plain = rope.theta ** -(torch.arange(0, width, 2, dtype=torch.float32) / width)
    return _SCALINGS[rope.kind](rope, plain, width)


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
    return (1 - ramp) * plain + ramp * plain / rope.factor, _yarn_scale(rope)


def _longrope(rope: RopeConfig, plain: Tensor, head_dim: int) -> tuple[Tensor, float]:
    """LongRoPE (arXiv 2402.13753): a divisor for each pair."""
    default = 1.0 if rope.factor <= 1 else math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_context))
    return plain / torch.tensor(rope.divisors), default if rope.attention_factor is None else rope.attention_factor


def _proportional(rope: RopeConfig, plain: Tensor, head_dim: int) -> tuple[Tensor, float]:
    """Gemma 4: the pairs with the highest frequencies rotate, the others do not."""
    rotates = torch.arange(head_dim // 2) < int(rope.fraction * head_dim // 2)
    return torch.where(rotates, plain / rope.factor, 0.0), 1.0


def _yarn_scale(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return yarn_temperature(rope.factor, rope.mscale) / yarn_temperature(rope.factor, rope.mscale_all_dim)
    return yarn_temperature(rope.factor)


_SCALINGS: dict[str, Callable[[RopeConfig, Tensor, int], tuple[Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
}
