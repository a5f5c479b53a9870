# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The second of decode attention's two kernels: the splits of one query head of one slot become its output.

Shapes as in `attend_split`. Splits beyond the live length were never written, and are not read.
"""

import triton
import triton.language as tl

from ringkv.kernels.gpu.attend_split import bounds


@triton.jit
def merge_splits(
    part_at,
    lse_at,
    live_at,
    out_at,  # [B, H, G, D]
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLITS: tl.constexpr,
    ALL: tl.constexpr,  # SPLITS, padded to a power of two
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,  # splits read at a time
):
    group, head, slot = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    live = tl.load(live_at + slot)
    column = tl.arange(0, COLUMNS)
    real = column < WIDTH
    place = (slot * HEADS + head) * SPLITS
    every = tl.arange(0, ALL)
    first, stop = bounds(live, every, SPLITS, BLOCK)
    used = (every < SPLITS) & (first < stop)
    top = tl.max(tl.load(lse_at + (place + every) * GROUPS + group, mask=used, other=float("-inf")), 0)

    total = tl.zeros((1,), tl.float32)
    acc = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, SPLITS, STEP):
        split = start + tl.arange(0, STEP)
        first, stop = bounds(live, split, SPLITS, BLOCK)
        used = (split < SPLITS) & (first < stop)
        at = (place + split) * GROUPS + group
        lse = tl.load(lse_at + at, mask=used, other=float("-inf"))
        weight = tl.where(used, tl.exp2(lse - top), 0.0)
        part = tl.load(part_at + at[:, None] * WIDTH + column[None, :], mask=used[:, None] & real[None, :], other=0.0)
        total += tl.sum(weight, 0)
        acc += tl.sum(weight[:, None] * part, 0)
    out = tl.where(live > 0, acc / total, 0.0)
    at = ((slot * HEADS + head) * GROUPS + group) * WIDTH + column
    tl.store(out_at + at, out.to(out_at.dtype.element_ty), mask=real)
