# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Writing of a step's keys and values to encoded slots: the first kernel of `encoded_attend`.

B rows of a step, H key-value heads, C entries, D head_dim, E first keys that a slot keeps exactly.
"""

import triton
import triton.language as tl


@triton.jit
def write_token(
    k_at,
    v_at,
    keys_at,
    key_scales_at,
    values_at,
    value_scales_at,
    centers_at,  # float32 [S, H, D + E D]
    slot_at,
    entry_at,
    live_at,
    k_row,  # strides, in elements
    k_head,
    v_row,
    v_head,
    plane_slot,
    plane_head,
    key_scale_slot,
    key_scale_head,
    value_scale_slot,
    value_scale_head,
    center_slot,
    center_head,
    STORE_KEY: tl.constexpr,
    STORE_VALUE: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # WIDTH, padded to a power of two
    STAGES: tl.constexpr,
):
    head, row = tl.program_id(0), tl.program_id(1)
    if tl.load(live_at + row) == 0:
        return
    slot, entry = tl.load(slot_at + row).to(tl.int64), tl.load(entry_at + row)
    plane = slot * plane_slot + head.to(tl.int64) * plane_head  # beyond 2**31 elements in a large cache
    key_scales = key_scales_at + slot * key_scale_slot + head * key_scale_head
    value_scales = value_scales_at + slot * value_scale_slot + head * value_scale_head
    column = tl.arange(0, COLUMNS)
    real = column < WIDTH
    center = tl.load(centers_at + slot * center_slot + head * center_head + column, mask=real, other=0.0)
    k = tl.load(k_at + row * k_row + head * k_head + column, mask=real, other=0.0).to(tl.float32) - center
    v = tl.load(v_at + row * v_row + head * v_head + column, mask=real, other=0.0).to(tl.float32)
    STORE_KEY(k, keys_at + plane, key_scales, entry, WIDTH, COLUMNS, STAGES)
    STORE_VALUE(v, values_at + plane, value_scales, entry, WIDTH, COLUMNS, STAGES)
