# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The two grouped GEMMs of `experts`, and the sum of their results.

M rows, E experts, K chosen for each row, H hidden elements, I intermediate elements. A position is a place
among the M * K pairs of a row and an expert, sorted by expert; `order` int64 [M * K] has the pair at each position.

A program multiplies one tile of rows with columns of its expert's matrix. An expert's rows are consecutive positions,
which its tiles cover; the last of them may have fewer rows. How many tiles an expert has is known only on the device:
programs without a tile return.

Programs with neighbouring numbers share an expert's weights in the first product, whose matrices are larger than its
rows, and rows in the second, where it is the other way round.
"""

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from ringkv.kernels.linear import CLAMP as _CLAMP
from ringkv.kernels.linear import STEEPNESS as _STEEPNESS

CLAMP = tl.constexpr(_CLAMP)
STEEPNESS = tl.constexpr(_STEEPNESS)
TWICE_ROOT_2_PI = tl.constexpr(1.5957691216057308)  # 2 * sqrt(2 / pi)


@triton.jit
def silu(gate, up):
    return gate * tl.sigmoid(gate) * up


@triton.jit
def gelu_tanh(gate, up):
    # (1 + tanh(a)) / 2 is sigmoid(2 a).
    return gate * tl.sigmoid((gate + gate * gate * gate * 0.044715) * TWICE_ROOT_2_PI) * up


@triton.jit
def clamped_swiglu(gate, up):
    gate = tl.where(gate > CLAMP, CLAMP, gate)  # NaN stays NaN
    up = tl.where(up > CLAMP, CLAMP, tl.where(up < -CLAMP, -CLAMP, up))
    return gate * tl.sigmoid(gate * STEEPNESS) * (up + 1)


ACTIVATIONS: Mapping[str, Any] = {"silu": silu, "gelu_tanh": gelu_tanh, "clamped_swiglu": clamped_swiglu}
"""Gated activations; `kernels.linear.ACTIVATIONS` has the same in torch."""


@triton.jit
def find_tile(
    bounds_at,  # int32 [E + 1], the first position of each expert, and the number of all
    tile,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,  # EXPERTS, padded to a power of two
    ROWS: tl.constexpr,  # positions of a tile
):
    """Return expert, first and stop of the positions of tile number `tile`; first equals stop if there is no tile."""
    expert = tl.arange(0, PADDED)
    is_real = expert < EXPERTS
    first = tl.load(bounds_at + expert, mask=is_real, other=0)
    stop = tl.load(bounds_at + expert + 1, mask=is_real, other=0)
    tiles = tl.cdiv(stop - first, ROWS)
    after = tl.cumsum(tiles, 0)  # the first tile of the next expert
    chosen = tl.sum((after <= tile).to(tl.int32), 0)
    is_chosen = expert == chosen
    start = tl.sum(tl.where(is_chosen, first + (tile - after + tiles) * ROWS, 0), 0)
    return chosen, start, tl.sum(tl.where(is_chosen, stop, 0), 0)


@triton.jit
def gated_tile(
    x_at,  # [M, H]
    order_at,
    bounds_at,
    weight_at,  # [E * 2 * I, H]
    bias_at,  # [E * 2 * I], or None
    out_at,  # [M * K, I], by position
    ACTIVATE: tl.constexpr,
    CHOSEN: tl.constexpr,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,  # EXPERTS, padded to a power of two
    HIDDEN: tl.constexpr,
    BETWEEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    UPCAST: tl.constexpr,  # multiply float32 copies: Triton's interpreter cannot multiply bfloat16
):
    expert, first, stop = find_tile(bounds_at, tl.program_id(0), EXPERTS, PADDED, ROWS)
    if first >= stop:
        return
    position, column = first + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = position < stop, column < BETWEEN
    row = tl.load(order_at + position, mask=is_row, other=0) // CHOSEN
    gates = weight_at + expert.to(tl.int64) * (2 * BETWEEN * HIDDEN)  # beyond 2**31 elements with many experts
    ups = gates + BETWEEN * HIDDEN
    gate = tl.zeros((ROWS, COLUMNS), tl.float32)
    up = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, HIDDEN, DEPTH):
        deep = start + tl.arange(0, DEPTH)
        is_deep = deep < HIDDEN
        x = tl.load(x_at + row[:, None] * HIDDEN + deep[None, :], mask=is_row[:, None] & is_deep[None, :], other=0.0)
        mask, at = is_deep[:, None] & is_column[None, :], column[None, :] * HIDDEN + deep[:, None]
        gate_weight = tl.load(gates + at, mask=mask, other=0.0)
        up_weight = tl.load(ups + at, mask=mask, other=0.0)
        if UPCAST:
            x = x.to(tl.float32)
        gate = tl.dot(x, gate_weight.to(x.dtype), gate, input_precision="ieee")
        up = tl.dot(x, up_weight.to(x.dtype), up, input_precision="ieee")
    if bias_at is not None:
        biases = bias_at + expert * (2 * BETWEEN) + column
        gate += tl.load(biases, mask=is_column, other=0.0).to(tl.float32)[None, :]
        up += tl.load(biases + BETWEEN, mask=is_column, other=0.0).to(tl.float32)[None, :]
    out = ACTIVATE(gate, up).to(out_at.dtype.element_ty)
    at = position.to(tl.int64)[:, None] * BETWEEN + column[None, :]
    tl.store(out_at + at, out, mask=is_row[:, None] & is_column[None, :])


@triton.jit
def down_tile(
    x_at,  # [M * K, I], by position
    order_at,
    bounds_at,
    weight_at,  # [E * H, I]
    bias_at,  # [E * H], or None
    out_at,  # float32 [M * K, H], by pair
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,  # EXPERTS, padded to a power of two
    HIDDEN: tl.constexpr,
    BETWEEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    UPCAST: tl.constexpr,  # multiply float32 copies: Triton's interpreter cannot multiply bfloat16
):
    expert, first, stop = find_tile(bounds_at, tl.program_id(1), EXPERTS, PADDED, ROWS)
    if first >= stop:
        return
    position, column = first + tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = position < stop, column < HIDDEN
    rows = x_at + position.to(tl.int64)[:, None] * BETWEEN
    columns = weight_at + expert.to(tl.int64) * (HIDDEN * BETWEEN) + column[None, :] * BETWEEN
    out = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, BETWEEN, DEPTH):
        deep = start + tl.arange(0, DEPTH)
        is_deep = deep < BETWEEN
        x = tl.load(rows + deep[None, :], mask=is_row[:, None] & is_deep[None, :], other=0.0)
        weight = tl.load(columns + deep[:, None], mask=is_deep[:, None] & is_column[None, :], other=0.0)
        if UPCAST:
            x = x.to(tl.float32)
        out = tl.dot(x, weight.to(x.dtype), out, input_precision="ieee")
    if bias_at is not None:
        out += tl.load(bias_at + expert * HIDDEN + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    pair = tl.load(order_at + position, mask=is_row, other=0)
    tl.store(out_at + pair[:, None] * HIDDEN + column[None, :], out, mask=is_row[:, None] & is_column[None, :])


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
    """Add the weighted outputs of a row's experts, in top-k order. Experts on another rank have no output here."""
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
