"""What tests of products share: numbers as they are stored, and the norm written out in float64."""

import torch
from torch import Tensor

EPS = 1e-5
SHAPES = [(32, 64), (960, 576), (96, 1536), (64, 4800)]  # out, in: within, at and beyond the sizes taken at once


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def normalised(x: Tensor, norm: Tensor) -> Tensor:
    wide = x.double()
    scaled = wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt()
    return (scaled.bfloat16() * norm).double()
