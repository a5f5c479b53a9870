# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The weighted sum of the outputs of a row's experts, in top-k order: the last kernel of `experts`.

Experts on another rank, outside 0 .. EXPERTS - 1, have no output here.
"""

import triton
import triton.language as tl


@triton.jit
def sum_experts(
    parts_at,  # float32 [M * K, H]
    experts_at,  # int64 [M, K]
    weights_at,  # float32 [M, K]
    residual_at,  # [M, H]
    out_at,  # [M, H]
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    HIDDEN: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_real = column < HIDDEN
    total = tl.load(residual_at + row * HIDDEN + column, mask=is_real, other=0.0).to(tl.float32)
    for place in tl.static_range(CHOSEN):
        pair = row * CHOSEN + place
        expert = tl.load(experts_at + pair)
        is_here = (expert >= 0) & (expert < EXPERTS)
        part = tl.load(parts_at + pair * HIDDEN + column, mask=is_real & is_here, other=0.0)
        total += tl.load(weights_at + pair) * part
    tl.store(out_at + row * HIDDEN + column, total.to(out_at.dtype.element_ty), mask=is_real)
