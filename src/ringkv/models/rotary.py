"""Rotary position embedding (RoFormer, arXiv 2104.09864): queries and keys rotated by their absolute position.

N tokens, D head_dim, of which R elements rotate. Frequencies may be scaled to a longer context. A wavelength is the
number of positions in which a pair rotates once.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.models.layer import RopeConfig, yarn_temperature


def frequencies(rope: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """Return the angles per position, float32 [R / 2], and the factor on cosine and sine."""
    width = rope.width or head_dim
    plain = rope.theta ** -(torch.arange(0, width, 2, dtype=torch.float32) / width)
    match rope.kind:
        case "default":
            return plain, 1.0
        case "linear":  # position interpolation (arXiv 2306.15595)
            return plain / rope.factor, 1.0
        case "llama3":  # Llama 3.1 scales long wavelengths, keeps short ones and blends those between
            rotations = rope.original_context / (2 * math.pi / plain)  # within the original context
            smooth = ((rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1)
            return smooth * plain + (1 - smooth) * plain / rope.factor, 1.0
        case "yarn":
            return _yarn(rope, plain, width)
        case "longrope":  # a divisor for each pair (arXiv 2402.13753)
            longer = rope.factor > 1
            scale = math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_context)) if longer else 1.0
            return plain / torch.tensor(
                rope.divisors
            ), scale if rope.attention_factor is None else rope.attention_factor
        case "proportional":  # Gemma 4 rotates the pairs with the highest frequencies, and no others
            rotates = torch.arange(width // 2) < int(rope.fraction * width // 2)
            return torch.where(rotates, plain / rope.factor, 0.0), 1.0


def _yarn(rope: RopeConfig, plain: Tensor, width: int) -> tuple[Tensor, float]:
    """YaRN (arXiv 2309.00071): interpolate slow pairs, keep fast ones, blend those between, and scale attention."""

    def pair(rotations: float) -> float:  # the pair that rotates so often within the original context
        return width * math.log(rope.original_context / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair(rope.beta_fast), pair(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = ((torch.arange(width // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    if (scale := rope.attention_factor) is None:
        scale = yarn_temperature(rope.factor)
        if rope.mscale and rope.mscale_all_dim:
            scale = yarn_temperature(rope.factor, rope.mscale) / yarn_temperature(rope.factor, rope.mscale_all_dim)
    return (1 - ramp) * plain + ramp * plain / rope.factor, scale


class Rotation(NamedTuple):
    """Cosines and sines of N tokens, [N, 1, R / 2]; a row applies to all heads."""

    cos: Tensor
    sin: Tensor


def rotation(positions: Tensor, frequencies: Tensor, scale: float, dtype: torch.dtype) -> Rotation:
    """Return the angles of int positions [N] at frequencies float32 [R / 2]; `scale` (YaRN's) multiplies both."""
    angles = (positions[:, None].float() * frequencies)[:, None]
    return Rotation((angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype))


def rotate(x: Tensor, by: Rotation, interleaved: bool = False) -> Tensor:
    """Rotate x [N, heads, D], in float32. The pairs are (i, i + R/2), as in most checkpoints, or (2i, 2i + 1).

    It rounds once, as a compiled graph does, so that the plain function has the graph's bits.
    """
    width, cos, sin = 2 * by.cos.shape[-1], by.cos.float(), by.sin.float()
    rotated = x[..., :width].float()
    low, high = rotated.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else rotated.chunk(2, dim=-1)
    pair = low * cos - high * sin, high * cos + low * sin
    both = (torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)).to(x.dtype)
    return both if width == x.shape[-1] else torch.cat((both, x[..., width:]), dim=-1)
