"""mxfp4_groups: MXFP4 as integers. Twice an element of E2M1 is a whole number of -12 .. 12, so no element is rounded.

float16 has the scale, half the block's power of two, down to 2 ** -24, and a multiple extends it up to 2 ** 21.
"""

import torch
from torch import Tensor

from ringkv.kernels.byte_groups import ByteGroups
from ringkv.weights.mxfp4 import BIAS, PAIRS

INTEGERS = (2 * PAIRS).to(torch.int8)  # [256, 2], of each byte
LEAST, MOST, MOST_OF_HALF = -24, 21, 15  # exponents of scales


def byte_groups(blocks: Tensor, exponents: Tensor) -> ByteGroups | None:
    """Return [n, in] of blocks uint8 [n, in / 32, 16] and exponents uint8 [n, in / 32].

    None if a block's power of two is out of range and the block is not all zeros.
    """
    q = INTEGERS[blocks.int()].flatten(-2)
    exponent = exponents.int() - BIAS - 1
    if ((exponent < LEAST) | (exponent > MOST)).logical_and(q.any(-1)).any():
        return None
    exponent = exponent.clamp(LEAST, MOST)
    half = exponent.clamp(max=MOST_OF_HALF)
    scale, multiple = (torch.ldexp(torch.ones(one.shape), one) for one in (half, exponent - half))
    return ByteGroups(q.flatten(-2), scale.half(), multiple.to(torch.int8).repeat_interleave(2, 1))
