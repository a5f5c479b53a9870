"""route on CUDA: one Triton kernel, a program for each row."""

import torch
import triton
from torch import Tensor

from ringkv.base.router import Router
from ringkv.kernels.gpu.top_k_experts import top_k_experts


def route(logits: Tensor, correction: Tensor | None, router: Router, gates: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `kernels.route`, whose reference is the contract."""
    rows = logits.shape[0]
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    chosen = logits.new_empty(rows, router.chosen, dtype=torch.int64)
    weights, opened = logits.new_empty(rows, router.chosen), logits.new_empty(rows, gates)
    top_k_experts[(rows,)](
        logits,
        correction,
        chosen,
        weights,
        opened,
        logits.stride(0),
        router.scale,
        EXPERTS=router.experts,
        PADDED=triton.next_power_of_2(router.experts),
        CHOSEN=router.chosen,
        GROUPS=router.groups,
        PADDED_GROUPS=triton.next_power_of_2(router.groups),
        KEPT=router.kept_groups,
        BEST=router.best,
        GATES=gates,
        PADDED_GATES=triton.next_power_of_2(max(1, gates)),
        IS_SIGMOID=router.is_sigmoid,
        NORMALISED=router.normalised,
        num_warps=1,
    )
    return chosen, weights, opened
