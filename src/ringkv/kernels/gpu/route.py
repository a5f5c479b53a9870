"""route on CUDA: one Triton kernel, a program for each row."""

import torch
import triton
from torch import Tensor

from ringkv.kernels.gpu.top_k_experts import top_k_experts


def route(
    logits: Tensor,
    correction: Tensor | None,
    experts: int,
    chosen: int,
    is_sigmoid: bool,
    normalised: bool,
    scale: float,
    groups: int,
    kept_groups: int,
    best: int,
    gates: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `kernels.route`, whose reference is the contract."""
    rows = logits.shape[0]
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    found = logits.new_empty(rows, chosen, dtype=torch.int64)
    weights, opened = logits.new_empty(rows, chosen), logits.new_empty(rows, gates)
    top_k_experts[(rows,)](
        logits,
        correction,
        found,
        weights,
        opened,
        logits.stride(0),
        scale,
        EXPERTS=experts,
        PADDED=triton.next_power_of_2(experts),
        CHOSEN=chosen,
        GROUPS=groups,
        PADDED_GROUPS=triton.next_power_of_2(groups),
        KEPT=kept_groups,
        BEST=best,
        GATES=gates,
        PADDED_GATES=triton.next_power_of_2(max(1, gates)),
        IS_SIGMOID=is_sigmoid,
        NORMALISED=normalised,
        num_warps=1,
    )
    return found, weights, opened
