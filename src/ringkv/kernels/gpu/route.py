# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""route on CUDA: one Triton kernel, a program for each row.

M rows, E experts, in groups of SIZE. A score that is NaN ranks highest, as in torch's sort, so that it stays visible.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ringkv.base.router import Router


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


@triton.jit
def highest(values, is_free, index, NONE: tl.constexpr):
    """Return the highest of the free values, and the first index that has it."""
    best = tl.max(tl.where(is_free, values, float("-inf")), 0)
    return best, tl.min(tl.where(is_free & (values == best), index, NONE), 0)


@triton.jit
def in_best_groups(
    ranked,
    is_real,
    expert,
    EXPERTS: tl.constexpr,
    GROUPS: tl.constexpr,
    PADDED_GROUPS: tl.constexpr,
    KEPT: tl.constexpr,
    BEST: tl.constexpr,
):
    """Return whether an expert is in one of the KEPT groups with the highest sums of their BEST scores."""
    SIZE: tl.constexpr = EXPERTS // GROUPS
    group = tl.arange(0, PADDED_GROUPS)
    sums = tl.full((PADDED_GROUPS,), float("-inf"), tl.float32)
    for index in tl.static_range(GROUPS):
        is_free = is_real & (expert // SIZE == index)
        total, first = highest(ranked, is_free, expert, EXPERTS)
        for _ in tl.static_range(BEST - 1):
            is_free = is_free & (expert != first)
            best, first = highest(ranked, is_free, expert, EXPERTS)
            total += best
        sums = tl.where(group == index, total, sums)
    is_kept = is_real & (expert < 0)
    is_free_group = group < GROUPS
    for _ in tl.static_range(KEPT):
        _best, top = highest(sums, is_free_group, group, GROUPS)
        is_free_group = is_free_group & (group != top)
        is_kept = is_kept | (expert // SIZE == top)
    return is_kept & is_real


@triton.jit
def top_k_experts(
    logits_at,  # float32 [M, at least E + GATES]
    correction_at,  # float32 [E], or None
    experts_at,  # int64 [M, CHOSEN]
    weights_at,  # float32 [M, CHOSEN]
    gates_at,  # float32 [M, GATES]
    logits_row,  # stride, in elements
    scale,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,  # EXPERTS, padded to a power of two
    CHOSEN: tl.constexpr,
    GROUPS: tl.constexpr,
    PADDED_GROUPS: tl.constexpr,
    KEPT: tl.constexpr,
    BEST: tl.constexpr,
    GATES: tl.constexpr,
    PADDED_GATES: tl.constexpr,
    IS_SIGMOID: tl.constexpr,
    NORMALISED: tl.constexpr,
):
    """Write the top-k experts of one row, and their weights."""
    row, expert = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    is_real = expert < EXPERTS
    logits = tl.load(logits_at + row * logits_row + expert, mask=is_real, other=float("-inf"))
    if IS_SIGMOID:
        scores = tl.sigmoid(logits)
    else:
        powers = tl.exp(logits - tl.max(logits, 0))
        scores = powers / tl.sum(powers, 0)
    ranked = scores
    if correction_at is not None:
        ranked += tl.load(correction_at + expert, mask=is_real, other=0.0)
    ranked = tl.where(ranked == ranked, ranked, float("inf"))
    if GROUPS > 1:
        is_kept = in_best_groups(ranked, is_real, expert, EXPERTS, GROUPS, PADDED_GROUPS, KEPT, BEST)
        ranked = tl.where(is_kept, ranked, float("-inf"))
    is_free = is_real
    for _ in tl.static_range(CHOSEN):
        _best, top = highest(ranked, is_free, expert, EXPERTS)
        is_free = is_free & (expert != top)
    is_chosen = is_real & (is_free == 0)
    weights = tl.where(is_chosen, scores, 0.0)
    if NORMALISED:
        weights = weights / (tl.sum(weights, 0) + 1e-20)
    place = row * CHOSEN + tl.cumsum(is_chosen.to(tl.int32), 0) - 1
    tl.store(experts_at + place, expert.to(tl.int64), mask=is_chosen)
    tl.store(weights_at + place, weights * scale, mask=is_chosen)
    if GATES > 0:
        gate = tl.arange(0, PADDED_GATES)
        gates = tl.load(logits_at + row * logits_row + EXPERTS + gate, mask=gate < GATES, other=0.0)
        tl.store(gates_at + row * GATES + gate, tl.sigmoid(gates), mask=gate < GATES)
