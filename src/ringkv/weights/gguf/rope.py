"""The rotary embedding of a GGUF, as config.json has it.

Linear and YaRN scaling are stored as metadata. Llama 3.1 and later store only the tensor of divisors that follows from
the parameters; the parameters are recovered from it. LongRoPE's factors are two tensors.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ringkv.base.errors import UnsupportedModel
from ringkv.weights.gguf.fields import short
from ringkv.weights.gguf.file import GGUF

ROPE_DIVISORS = "rope_freqs.weight"
LONGROPE = {"long_factor": "rope_factors_long.weight", "short_factor": "rope_factors_short.weight"}
ROPE_TENSORS = frozenset({ROPE_DIVISORS, *LONGROPE.values()})
"""Tensors that parameters in config.json replace."""


def theta(gguf: GGUF) -> float:
    """Return the base of the rotary embedding."""
    return gguf.decimal(".rope.freq_base", 10000.0)


def rope_scaling(gguf: GGUF, head_dim: int) -> dict[str, Any] | None:
    """Return rope_scaling of heads that rotate `head_dim` elements; None if there is no scaling."""
    if gguf.has(ROPE_DIVISORS):
        return _llama3_scaling(gguf, gguf.tensor(ROPE_DIVISORS).reshape(-1), theta(gguf), head_dim)
    if all(map(gguf.has, LONGROPE.values())):
        return _longrope(gguf)
    scaling = gguf.text(".rope.scaling.type", "none")
    if scaling in ("none", ""):
        return None
    factor = gguf.decimal(".rope.scaling.factor", gguf.decimal(".rope.scale_linear", 0.0))
    if factor <= 0:
        return None
    common = {"rope_type": scaling, "factor": short(factor)}
    return common | _yarn(gguf, factor) if scaling == "yarn" else common


def _longrope(gguf: GGUF) -> dict[str, Any]:
    fields = {
        "rope_type": "longrope",
        "original_max_position_embeddings": gguf.positive(".rope.scaling.original_context_length"),
        **{name: [short(value) for value in gguf.tensor(tensor).ravel().tolist()] for name, tensor in LONGROPE.items()},
    }
    given = gguf.decimal(".rope.scaling.attn_factor", 0.0)  # 0: it follows from the two contexts
    return {**fields, "attention_factor": given} if given else fields


def _yarn(gguf: GGUF, factor: float) -> dict[str, Any]:
    prefix = ".rope.scaling"
    fields: dict[str, Any] = {
        "original_max_position_embeddings": gguf.get(f"{prefix}.original_context_length"),
        "beta_fast": gguf.get(f"{prefix}.yarn_beta_fast"),
        "beta_slow": gguf.get(f"{prefix}.yarn_beta_slow"),
    }
    scale = gguf.decimal(f"{prefix}.attn_factor", 1.0) * gguf.decimal(f"{prefix}.yarn_attn_factor", 1.0)
    if scale != 1:  # in GGUF it multiplies YaRN's own factor, in config.json it replaces it
        fields["attention_factor"] = scale * (0.1 * math.log(factor) + 1)
    return {name: value for name, value in fields.items() if value is not None}


def _llama3_scaling(gguf: GGUF, divisors: npt.NDArray[np.float32], base: float, head_dim: int) -> dict[str, Any] | None:
    """Return the llama3 parameters of divisors [head_dim / 2]. Only the factor differs between Meta's models."""
    factor = float(divisors.max())
    if factor == 1:
        return None
    parameters = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    if divisors.shape != (head_dim // 2,) or not np.allclose(divisors, _llama3_divisors(base, factor, head_dim), 1e-3):
        raise UnsupportedModel(
            f"{gguf.path} scales its rotary embedding by a tensor {ROPE_DIVISORS} that is not Llama 3.1's rule; "
            "ringkv supports only that of Llama 3.1, 3.2 and 3.3: fetch this model as safetensors"
        )
    return parameters


def _llama3_divisors(base: float, factor: float, head_dim: int) -> npt.NDArray[np.float64]:
    """Return each frequency's divisor, [head_dim / 2]: 1 for fast ones, `factor` for slow ones, a ramp between."""
    wavelength = 2 * np.pi * base ** (np.arange(0, head_dim, 2) / head_dim)
    rotations = 8192 / wavelength  # within the original context; 1 is slow, 4 is fast
    smooth = np.clip((rotations - 1) / (4 - 1), 0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth))
