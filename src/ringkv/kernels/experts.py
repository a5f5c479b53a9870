"""experts: the chosen experts of each row, weighted and added up, as one operator.

M rows, E experts, K chosen for each row. Rows are sorted by expert, so that an expert's weights are read once, and only
if a row has chosen it. Shapes are static: how many rows an expert has is known only while the operator runs.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.library import register_fake

from ringkv.kernels import linear
from ringkv.kernels.expert_stack import ExpertStack
from ringkv.kernels.library import LIBRARY, grouped
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
    out: Tensor = operator(*_Arguments.of(x, chosen, weights, stack, residual, norm))
    return out


class _Arguments(NamedTuple):
    """The operator's arguments in their order."""

    x: Tensor
    chosen: Tensor
    weights: Tensor
    gate_up: Tensor
    down: Tensor
    experts: int
    norm: Tensor | None
    eps: float
    residual: Tensor
    activation: str
    offset: float
    gate_up_bias: Tensor | None
    down_bias: Tensor | None

    @classmethod
    def of(
        cls, x: Tensor, chosen: Tensor, weights: Tensor, stack: ExpertStack, residual: Tensor, norm: RMSNorm
    ) -> Self:
        gate_up, down, count, activation, *biases = stack
        matrices, before = (gate_up, down, count), (norm.weight, norm.eps)
        return cls(x, chosen, weights, *matrices, *before, residual, activation, norm.offset, *biases)

    @property
    def stack(self) -> ExpertStack:
        biases = self.gate_up_bias, self.down_bias
        return ExpertStack(self.gate_up, self.down, self.experts, self.activation, *biases)


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


def _reference(call: _Arguments) -> Tensor:
    norm = RMSNorm(call.norm, call.eps, call.offset)
    return reference(call.x, call.chosen, call.weights, call.stack, call.residual, norm)


def _cuda(call: _Arguments) -> Tensor:
    from ringkv.kernels.gpu import experts as gpu  # loads Triton

    assert call.norm is None, "`experts` normalises x on CUDA"
    return gpu.experts(call.x, call.chosen, call.weights, call.stack, call.residual)


def _shape(call: _Arguments) -> Tensor:
    return torch.empty_like(call.residual, memory_format=torch.contiguous_format)


for _name in ("experts", "experts_any"):
    LIBRARY.impl(_name, grouped(_reference), "CompositeExplicitAutograd")
    register_fake(f"ringkv::{_name}", grouped(_shape), lib=LIBRARY)
if find_spec("triton"):
    LIBRARY.impl("experts", grouped(_cuda), "CUDA")
