"""experts: the chosen experts of each row, weighted and added up, as one operator.

M rows, E experts, K chosen for each row. Rows are sorted by expert, so that an expert's weights are read once, and only
if a row has chosen it. Shapes are static: how many rows an expert has is known only while the operator runs.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ringkv.kernels import linear
from ringkv.kernels.expert_stack import ExpertStack
from ringkv.kernels.library import grouped, register
from ringkv.kernels.norm import RMSNorm, rms_norm

NO_NORM = RMSNorm(None)


def experts(
    x: Tensor, chosen: Tensor, weights: Tensor, stack: ExpertStack, residual: Tensor, norm: RMSNorm = NO_NORM
) -> Tensor:
    """Return residual [M, hidden] + the sum over K of weights * down(activation(gate) * up) of normalised x.

    x [M, hidden]; chosen int64 [M, K]; weights float32 [M, K]. Experts that are chosen outside 0 .. experts - 1 are
    another rank's, and add nothing. Sums are float32.
    """
    if x.is_cuda and norm.weight is not None:  # outside the operator, where Inductor normalises once for all products
        x, norm = rms_norm(x, norm.weight, norm.eps, norm.offset), NO_NORM
    is_packed = 2 not in (stack.gate_up.dim(), stack.down.dim())
    operator = torch.ops.ringkv.experts if is_packed or x.is_cuda else torch.ops.ringkv.experts_any
    out: Tensor = operator(x, chosen, weights, *stack, residual, *norm)
    return out


def reference(
    x: Tensor, chosen: Tensor, weights: Tensor, stack: ExpertStack, residual: Tensor, norm: RMSNorm = NO_NORM
) -> Tensor:
    """Implement `experts` in plain torch, one expert after the other."""
    gate_up, down, count, activation, *biases = stack
    total = residual.to(torch.float32, copy=True)
    each = zip(gate_up.chunk(count), down.chunk(count), *(_each(bias, count) for bias in biases), strict=True)
    for expert, (first, second, first_bias, second_bias) in enumerate(each):
        row, place = (chosen == expert).nonzero(as_tuple=True)
        if len(row):
            between = linear.gated_reference(x[row], first, first_bias, norm.weight, norm.eps, activation, norm.offset)
            out = linear.reference(between, second, second_bias, None, 0.0, None, torch.float32)
            total.index_add_(0, row, out * weights[row, place, None])
    return total.to(x.dtype)


def _each(bias: Tensor | None, count: int) -> Sequence[Tensor | None]:
    return [None] * count if bias is None else bias.chunk(count)


def _cuda(x: Tensor, chosen: Tensor, weights: Tensor, stack: ExpertStack, residual: Tensor, norm: RMSNorm) -> Tensor:
    from ringkv.kernels.gpu import experts as gpu  # loads Triton

    assert norm.weight is None, "`experts` normalises x on CUDA"
    return gpu.experts(x, chosen, weights, stack, residual)


def _shape(x: Tensor, chosen: Tensor, weights: Tensor, stack: ExpertStack, residual: Tensor, norm: RMSNorm) -> Tensor:
    return torch.empty_like(residual, memory_format=torch.contiguous_format)


register("experts", grouped(reference), grouped(_shape), grouped(_cuda))
register("experts_any", grouped(reference), grouped(_shape))
