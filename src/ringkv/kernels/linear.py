"""linear: a matrix times a few rows, as a decode step needs it, or times many, as prefill does.

M rows. With few rows the time is that of reading the weights once, which a library made for large products misses by a
factor; with many it is arithmetic, which the library does best.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ringkv.kernels.library import LIBRARY

FEW = 4  # rows: one pass of the kernel over the weights serves them all
STEP = 64  # the inner size must be a multiple of it for every instruction set and type


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [M, in] times weight [out, in] transposed, plus bias [out]; float32 sums, the result in x's type."""
    if x.device.type != "cpu" or len(x) > FEW or x.shape[1] % STEP:
        return F.linear(x, weight, bias)
    out: Tensor = torch.ops.ringkv.linear(x, weight, bias)
    return out


def _shape(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(len(x), len(weight))


LIBRARY.impl("linear", F.linear, "CompositeExplicitAutograd")
LIBRARY.impl("linear", _shape, "Meta")
