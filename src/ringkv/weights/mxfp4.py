"""mxfp4: matrices in 4-bit floats with a power of two for each 32 elements (OCP Microscaling Formats 1.0, section 5.2).

`shapes` has the layout. The earlier element is in a byte's low half, and exponents have a bias of 127.
"""

import torch
from torch import Tensor

from ringkv.kernels.byte_groups import ByteGroups

BIAS = 127
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of E2M1; the fourth bit is the sign
VALUES = torch.tensor([*MAGNITUDES, *(-value for value in MAGNITUDES)])
PAIRS = torch.stack((VALUES.repeat(16), VALUES.repeat_interleave(16)), dim=-1)  # [256, 2], of each byte
POWERS = torch.ldexp(torch.ones(256), torch.arange(256) - BIAS)
ROWS = 64  # that are converted at a time, within a core's cache


def dequantised(blocks: Tensor, exponents: Tensor) -> Tensor:
    """Return float32 [n, in] of blocks uint8 [n, in / 32, 16] and exponents uint8 [n, in / 32]."""
    elements = PAIRS[blocks.int()].flatten(-2)
    return elements.mul_(POWERS[exponents.int()][..., None]).flatten(-2)


INTEGERS = (2 * PAIRS).to(torch.int8)  # [256, 2], of each byte
SMALLEST, LARGEST, LARGEST_OF_HALF = -24, 21, 15  # exponents of scales


def byte_groups(blocks: Tensor, exponents: Tensor) -> ByteGroups | None:
    """Return [n, in] of blocks uint8 [n, in / 32, 16] and exponents uint8 [n, in / 32].

    Twice an element of E2M1 is a whole number of -12 .. 12, so no element is rounded. float16 has the scale, half the
    block's power of two, down to 2 ** -24, and a multiple extends it up to 2 ** 21.
    None if a block's power of two is out of range and the block is not all zeros.
    """
    q = INTEGERS[blocks.int()].flatten(-2)
    exponent = exponents.int() - BIAS - 1
    if ((exponent < SMALLEST) | (exponent > LARGEST)).logical_and(q.any(-1)).any():
        return None
    exponent = exponent.clamp(SMALLEST, LARGEST)
    half = exponent.clamp(max=LARGEST_OF_HALF)
    scale, multiple = (torch.ldexp(torch.ones(power.shape), power) for power in (half, exponent - half))
    return ByteGroups(q.flatten(-2), scale.half(), multiple.to(torch.int8).repeat_interleave(2, 1))
