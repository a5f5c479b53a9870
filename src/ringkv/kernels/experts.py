"""experts: the chosen experts of each row, weighted and added up, as one operator.

M rows, E experts, K chosen for each row. Rows are sorted by expert, so that an expert's weights are read once, and only
if a row has chosen it. Shapes are static: how many rows an expert has is known only while the operator runs.
"""

from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.library import register_fake

from ringkv.kernels import linear
from ringkv.kernels.library import LIBRARY
from ringkv.kernels.norm import rms_norm


def experts(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    count: int,
    norm: Tensor | None,
    eps: float,
    residual: Tensor,
    activation: str = "silu",
    offset: float = 0.0,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> Tensor:
    """Return residual [M, hidden] + the sum over K of weights * down(activation(gate) * up) of normalised x.

    x [M, hidden]; chosen int64 [M, K]; weights float32 [M, K]. gate_up, down: the matrices of `count` experts, each
    [2 * I, hidden] and [hidden, I] or packed as for `gated` and `linear`, stacked along the first dimension. Experts
    that are chosen outside 0 .. count - 1 are another rank's, and add nothing.
    gate_up_bias, down_bias: their biases, [count * 2 * I] and [count * hidden]. Sums are float32.
    """
    if x.is_cuda and norm is not None:  # outside the operator, where Inductor normalises once for all products of x
        x, norm = rms_norm(x, norm, eps, offset), None
    biases = gate_up_bias, down_bias
    call = (x, chosen, weights, gate_up, down, count, norm, eps, residual, activation, offset, *biases)
    is_packed = 2 not in (gate_up.dim(), down.dim())
    operator = torch.ops.ringkv.experts if is_packed or x.is_cuda else torch.ops.ringkv.experts_any
    out: Tensor = operator(*call)
    return out


def reference(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    count: int,
    norm: Tensor | None,
    eps: float,
    residual: Tensor,
    activation: str = "silu",
    offset: float = 0.0,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> Tensor:
    """Implement `experts` in plain torch, one expert after the other."""
    total = residual.to(torch.float32, copy=True)
    biases = (_each(gate_up_bias, count), _each(down_bias, count))
    each = zip(gate_up.chunk(count), down.chunk(count), *biases, strict=True)
    for expert, (first, second, first_bias, second_bias) in enumerate(each):
        row, place = (chosen == expert).nonzero(as_tuple=True)
        if len(row):
            between = linear.gated_reference(x[row], first, first_bias, norm, eps, activation, offset)
            out = linear.reference(between, second, second_bias, None, 0.0, None, torch.float32)
            total.index_add_(0, row, out * weights[row, place, None])
    return total.to(x.dtype)


def _each(bias: Tensor | None, count: int) -> Sequence[Tensor | None]:
    return [None] * count if bias is None else bias.chunk(count)


def _cuda(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    count: int,
    norm: Tensor | None,
    eps: float,
    residual: Tensor,
    activation: str,
    offset: float,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
) -> Tensor:
    from ringkv.kernels.gpu import experts as gpu  # loads Triton

    assert norm is None, "`experts` normalises x on CUDA"
    biases = gate_up_bias, down_bias
    return gpu.experts(x, chosen, weights, gate_up, down, count, residual, activation, *biases)


def _shape(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    count: int,
    norm: Tensor | None,
    eps: float,
    residual: Tensor,
    *_: str | float | Tensor | None,
) -> Tensor:
    return torch.empty_like(residual, memory_format=torch.contiguous_format)


for _name in ("experts", "experts_any"):
    LIBRARY.impl(_name, reference, "CompositeExplicitAutograd")
    register_fake(f"ringkv::{_name}", _shape, lib=LIBRARY)
if find_spec("triton"):
    LIBRARY.impl("experts", _cuda, "CUDA")
