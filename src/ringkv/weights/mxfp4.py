"""mxfp4: matrices in 4-bit floats with a power of two for each 32 elements (OCP Microscaling Formats 1.0, section 5.2).

As gpt-oss has them for E experts: blocks uint8 [E, out, in / 32, 16], the earlier element in a byte's low half, and
exponents uint8 [E, out, in / 32] with a bias of 127.
"""

import torch
from torch import Tensor

BIAS = 127
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of E2M1; the fourth bit is the sign
VALUES = torch.tensor([*MAGNITUDES, *(-one for one in MAGNITUDES)])
PAIRS = torch.stack((VALUES.repeat(16), VALUES.repeat_interleave(16)), dim=-1)  # [256, 2], of each byte
POWERS = torch.ldexp(torch.ones(256), torch.arange(256) - BIAS)
ROWS = 64  # that are converted at a time, within a core's cache


def dequantised(blocks: Tensor, exponents: Tensor) -> Tensor:
    """Return float32 [n, in] of blocks uint8 [n, in / 32, 16] and exponents uint8 [n, in / 32]."""
    elements = PAIRS[blocks.int()].flatten(-2)
    return elements.mul_(POWERS[exponents.int()][..., None]).flatten(-2)
