# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The top-k experts of one row, and their weights: the kernel of `route`.

E experts, in groups of SIZE. A score that is NaN ranks highest, as in torch's sort, so that it stays visible.
"""

import triton
import triton.language as tl


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
    for one in tl.static_range(GROUPS):
        is_free = is_real & (expert // SIZE == one)
        total, first = highest(ranked, is_free, expert, EXPERTS)
        for _ in tl.static_range(BEST - 1):
            is_free = is_free & (expert != first)
            best, first = highest(ranked, is_free, expert, EXPERTS)
            total += best
        sums = tl.where(group == one, total, sums)
    is_kept = is_real & (expert < 0)
    is_free_group = group < GROUPS
    for _ in tl.static_range(KEPT):
        _best, found = highest(sums, is_free_group, group, GROUPS)
        is_free_group = is_free_group & (group != found)
        is_kept = is_kept | (expert // SIZE == found)
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
        _best, found = highest(ranked, is_free, expert, EXPERTS)
        is_free = is_free & (expert != found)
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
