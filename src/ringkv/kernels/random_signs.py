"""Signs that look random, and that a vector's width alone determines.

A rotation spreads an element evenly; a regular pattern of elements it may gather into one. Signs before it break
patterns up (SRHT, arXiv 1011.1595).
"""

from functools import cache

import torch
from torch import Tensor

FACTORS, BITS = (0x7FEB352D, 0x846CA68B), (16, 15, 16)  # of the hash `lowbias32`


@cache
def random_signs(width: int) -> Tensor:
    """Return 1 and -1 as float32 [width]; do not change them."""
    return torch.tensor([1.0 - 2.0 * (_hashed(width << 16 | at) >> 31) for at in range(width)])


def _hashed(x: int) -> int:
    """Return 32 bits of which each depends on all 32 bits of x."""
    x ^= x >> BITS[0]
    for factor, bits in zip(FACTORS, BITS[1:], strict=True):
        x = x * factor & 0xFFFFFFFF
        x ^= x >> bits
    return x
