"""Rotary position embedding (RoFormer, arXiv 2104.09864): queries and keys rotated by their absolute position.

N tokens, D head_dim, of which R elements rotate. Frequencies come from `rope`, which applies each
checkpoint's scaling.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Rotation(NamedTuple):
    """Cosines and sines of N tokens, [N, 1, R / 2]; a row applies to all heads."""

    cos: Tensor
    sin: Tensor


def rotation(positions: Tensor, frequencies: Tensor, scale: float, dtype: torch.dtype) -> Rotation:
    """Return the angles of int positions [N] at frequencies float32 [R / 2]; `scale` (YaRN's) multiplies both."""
    angles = (positions[:, None].float() * frequencies)[:, None]
    return Rotation((angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype))


def rotate(x: Tensor, by: Rotation, interleaved: bool = False, start: int = 0) -> Tensor:
    """Rotate x [N, heads, D], in float32. The pairs are (i, i + R/2), as in most checkpoints, or (2i, 2i + 1).

    start: the first element that rotates. It rounds once, as a compiled graph does, so that the plain function has the
    graph's bits.
    """
    stop, cos, sin = start + 2 * by.cos.shape[-1], by.cos.float(), by.sin.float()
    some = x[..., start:stop].float()
    low, high = some.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else some.chunk(2, dim=-1)
    pair = low * cos - high * sin, high * cos + low * sin
    both = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    around = x[..., :start], both.to(x.dtype), x[..., stop:]
    return around[1] if stop - start == x.shape[-1] else torch.cat(around, dim=-1)
