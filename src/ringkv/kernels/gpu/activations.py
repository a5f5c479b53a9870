# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Gated activations in Triton; `kernels.linear.ACTIVATIONS` has the same in torch."""

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
