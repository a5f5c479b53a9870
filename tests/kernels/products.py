"""Helpers of the tests of products: random bfloat16 tensors, and the RMSNorm in float64."""

import torch
from torch import Tensor

EPS = 1e-5
SHAPES = [(32, 64), (960, 576), (96, 1536), (64, 4800)]  # out, in: below, at and above the block sizes


def random_bf16(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def normalised(x: Tensor, norm: Tensor) -> Tensor:
    wide = x.double()
    scaled = wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt()
    return (scaled.bfloat16() * norm).double()
