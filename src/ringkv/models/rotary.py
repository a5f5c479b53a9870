"""Rotary position embedding (RoFormer, arXiv 2104.09864): queries and keys rotated by their absolute position.

N tokens, D head_dim. Frequencies come from `rope`, which applies each checkpoint's scaling.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Rotation(NamedTuple):
    """Cosines and sines of N tokens, [N, 1, D / 2]; a row applies to all heads."""

    cos: Tensor
    sin: Tensor


def rotation(positions: Tensor, frequencies: Tensor, scale: float, dtype: torch.dtype) -> Rotation:
    """Return the angles of int positions [N] at frequencies float32 [D / 2]; `scale` (YaRN's) multiplies both."""
    angles = (positions[:, None].float() * frequencies)[:, None]
    return Rotation((angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype))


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """Rotate x [N, heads, D], in float32. The pairs are (i, i + D/2), as in Hugging Face checkpoints.

    It rounds once, as a compiled graph does, so that the plain function has the graph's bits.
    """
    low, high = x.float().chunk(2, dim=-1)
    cos, sin = by.cos.float(), by.sin.float()
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)
