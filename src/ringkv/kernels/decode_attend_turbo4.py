"""Decode attention over 4-bit keys from a codebook with a float16 norm, and 4-bit values as in decode_attend_int4.py.

TurboQuant (arXiv 2504.19874): after random signs and a rotation, the elements of a key of unit norm are close to
samples of N(0, 1 / D), whatever the key. So one codebook, optimal for that distribution, serves all keys. Its norm is
stored beside it, corrected by what the codebook adds to it or takes from it. A query is rotated like its keys.

D elements of a vector.
"""

import math
from functools import reduce

import torch
from torch import Tensor

from ringkv.kernels import decode_attend_int4 as int4
from ringkv.kernels.encoded_attend import Encoding, register, register_cuda
from ringkv.kernels.hadamard import rotate
from ringkv.kernels.half_scales import half_offset
from ringkv.kernels.random_signs import random_signs

UPPER_LEVELS = (5, 15, 25, 36, 48, 62, 79, 104)
LEVELS = (*(-level for level in reversed(UPPER_LEVELS)), *UPPER_LEVELS)
"""The 16 levels of Lloyd and Max for N(0, 1), times `UNIT`, rounded. The squared error of N(0, 1) is 0.00951; without
rounding levels it is 0.00950. This unit has the least error of all whose levels are bytes."""
UNIT = 38.125
MIN_STEP = torch.finfo(torch.float32).tiny


def encode(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise [..., D] to nibbles uint8 [..., D / 2] of `int4.pack`, which are places in LEVELS, and float16 norms.

    A norm below float16's normal numbers, 6e-5, is less exact.
    """
    width = vectors.shape[-1]
    rotated = rotate(vectors.float() * random_signs(width).to(vectors.device))
    norms = _sum_of_squares(rotated).sqrt()
    # By a tensor, since CUDA multiplies by the inverse of a number, which rounds twice.
    step = (norms / torch.full_like(norms, UNIT * math.sqrt(width))).float().clamp(min=MIN_STEP)
    places = torch.bucketize(rotated / step[..., None], _bounds(vectors.device))
    chosen = _levels(vectors.device)[places].double().square().sum(-1)  # integers: exact in any order
    corrected = (norms * (UNIT * math.sqrt(width)) / chosen.sqrt()).float()
    return int4.pack(places.to(torch.uint8)), half_offset(corrected)


def decode(packed: Tensor, norms: Tensor) -> Tensor:
    """Invert `encode`: float32 [..., D], of the same norms."""
    levels = _levels(packed.device)[int4.unpack(packed).long()]
    rotated = rotate(levels * (norms.float() / (UNIT * math.sqrt(levels.shape[-1])))[..., None])
    return rotated * random_signs(levels.shape[-1]).to(packed.device)


def _sum_of_squares(vectors: Tensor) -> Tensor:
    """Return float64 [...] of [..., D]: halves are added until they are odd, so that every machine gets the same."""
    squares = vectors.double().square()
    while squares.shape[-1] % 2 == 0:
        first, second = squares.chunk(2, -1)
        squares = first + second
    return reduce(torch.add, squares.unbind(-1))


def _levels(device: torch.device) -> Tensor:
    return torch.tensor(LEVELS, dtype=torch.float32, device=device)


def _bounds(device: torch.device) -> Tensor:
    """Return the bounds between levels, float32 [15]: an element becomes the nearest level, or the lower of two."""
    levels = _levels(device)
    return (levels[1:] + levels[:-1]) / 2


TURBO4 = Encoding(encode, decode)
decode_attend_turbo4, reference = register("decode_attend_turbo4", TURBO4, int4.INT4)
register_cuda("decode_attend_turbo4", "turbo4")
