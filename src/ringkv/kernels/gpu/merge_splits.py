# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The second of decode attention's two kernels: the splits of one query head of one slot become its output.

Shapes as in `attend_split`. Splits beyond the live length were never written, and are not read.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.attend_split import share


@triton.jit(do_not_specialize=["heads", "groups", "splits"])
def merge_splits(
    part_at,
    lse_at,
    live_at,
    out_at,  # [B, H, G, D]
    heads,
    groups,
    splits,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,  # splits read at a time
):
    group, head, slot = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    live = tl.load(live_at + slot)
    used = tl.cdiv(live, tl.maximum(share(live, splits, BLOCK), 1))
    column = tl.arange(0, COLUMNS)
    real = column < WIDTH
    place = (slot.to(tl.int64) * heads + head) * splits

    # The first split holds the new token, so that `top` is finite after the first step.
    top = tl.full((1,), float("-inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    acc = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, used, STEP):
        split = start + tl.arange(0, STEP)
        is_used = split < used
        mask = is_used[:, None] & real[None, :]
        at = (place + split) * groups + group
        lse = tl.load(lse_at + at, mask=is_used, other=float("-inf"))
        part = tl.load(part_at + at[:, None] * WIDTH + column[None, :], mask=mask, other=0.0)
        highest = tl.maximum(top, tl.max(lse, 0))
        shrink = tl.exp2(top - highest)
        weight = tl.exp2(lse - highest)
        total = total * shrink + tl.sum(weight, 0)
        acc = acc * shrink + tl.sum(weight[:, None] * part, 0)
        top = highest
    out = tl.where(live > 0, acc / total, 0.0)
    at = ((slot * heads + head) * groups + group) * WIDTH + column
    tl.store(out_at + at, out.to(out_at.dtype.element_ty), mask=real)
