"""Tiny quantised layers, each with its dequantised matrix: weight = scale * (q - zero), from the published layouts."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # outputs in a word, from its lowest bits on


class Made(NamedTuple):
    """A layer. tensors: by suffix. weight: float32 [out, in]. q, zero: integers [out, in]. scale: float32 [out, in]."""

    tensors: dict[str, Tensor]
    weight: Tensor
    q: Tensor
    scale: Tensor
    zero: Tensor


Maker = Callable[[int, int, int], Made]
"""Makes a layer of `out` x `in` with groups of so many inputs."""


def _made(tensors: dict[str, Tensor], q: Tensor, scale: Tensor, zero: Tensor, group_of: Tensor) -> Made:
    scale, zero = scale.float()[:, group_of], zero[:, group_of]
    return Made(tensors, scale * (q - zero).float(), q, scale, zero)


def _words(q: Tensor, bits: int) -> Tensor:
    """Pack the last dimension into int32, the first integer in the lowest bits; zeros fill the last word."""
    each = 32 // bits
    padded = torch.nn.functional.pad(q, (0, -q.shape[-1] % each)).long().numpy()
    total = sum(padded[..., i::each] << (bits * i) for i in range(each))
    return torch.from_numpy(np.asarray(total).astype(np.uint32).view(np.int32))


def _random(out: int, inputs: int, group: int, bits: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return q, scales [out, groups], zeros from 1 to the largest [out, groups], and each input's group."""
    groups = inputs // group
    scale = ((torch.rand(out, groups) * 0.02 + 0.002) / (1 << bits - 4)).to(dtype)
    q, zero = torch.randint(1 << bits, (out, inputs)), torch.randint(1, 1 << bits, (out, groups))
    return q, scale, zero, torch.arange(inputs) // group


def awq(out: int, inputs: int, group: int) -> Made:
    q, scale, zero, group_of = _random(out, inputs, group, 4, torch.float16)
    order = torch.tensor([8 * word + one for word in range(out // 8) for one in AWQ_ORDER])
    packed = {"qweight": _words(q.T[:, order], 4), "qzeros": _words(zero.T[:, order], 4)}
    return _made({**packed, "scales": scale.T.contiguous()}, q, scale, zero, group_of)


def gptq(bits: int = 4, less: int = 1, act_order: bool = False, symmetric: bool = False) -> Maker:
    def make(out: int, inputs: int, group: int) -> Made:
        q, scale, zero, group_of = _random(out, inputs, group, bits, torch.float16)
        zero = torch.full_like(zero, 1 << bits - 1) if symmetric else zero
        group_of = group_of[torch.randperm(inputs)] if act_order else group_of
        packed = {"qweight": _words(q, bits).T.contiguous(), "qzeros": _words(zero.T - less, bits)}
        tensors = {**packed, "scales": scale.T.contiguous(), "g_idx": group_of.int()}
        return _made(tensors, q, scale, zero, group_of)

    return make


def packed(bits: int = 4, symmetric: bool = True, act_order: bool = False) -> Maker:
    def make(out: int, inputs: int, group: int) -> Made:
        q, scale, zero, group_of = _random(out, inputs, group, bits, torch.bfloat16)
        tensors = {"weight_scale": scale, "weight_shape": torch.tensor([out, inputs])}
        if symmetric:
            zero = torch.full_like(zero, 1 << bits - 1)
        else:
            tensors["weight_zero_point"] = _words(zero.T, bits).T.contiguous()
        if act_order:
            group_of = group_of[torch.randperm(inputs)]
            tensors["weight_g_idx"] = group_of.int()
        return _made({**tensors, "weight_packed": _words(q, bits)}, q, scale, zero, group_of)

    return make


def signed(symmetric: bool = True) -> Maker:
    def make(out: int, inputs: int, group: int) -> Made:
        q, scale, zero, group_of = _random(out, inputs, group, 8, torch.bfloat16)
        q, zero = q - 128, torch.zeros_like(zero) if symmetric else zero - 128
        zeros = {} if symmetric else {"weight_zero_point": zero.to(torch.int8)}
        return _made({"weight": q.to(torch.int8), "weight_scale": scale, **zeros}, q, scale, zero, group_of)

    return make


class Quantiser(NamedTuple):
    settings: Mapping[str, Any]
    make: Maker


def _scheme(bits: int, symmetric: bool, strategy: str) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": strategy, "group_size": 32}
    return {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}


def _compressed(format: str, bits: int, symmetric: bool = True, strategy: str = "group") -> dict[str, Any]:
    groups = _scheme(bits, symmetric, strategy)
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": groups, "ignore": ["lm_head"]}


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
QUANTISERS: Mapping[str, Quantiser] = {
    "awq": Quantiser({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}, awq),
    "gptq": Quantiser({**GPTQ, "desc_act": False}, gptq()),
    "gptq-v2": Quantiser({**GPTQ, "checkpoint_format": "gptq_v2"}, gptq(less=0)),
    "gptq-v2-of-gptqmodel": Quantiser({**GPTQ, "format": "gptq_v2", "checkpoint_format": None}, gptq(less=0)),
    "gptq-act-order": Quantiser({**GPTQ, "desc_act": True}, gptq(act_order=True)),
    "gptq-8": Quantiser({**GPTQ, "bits": 8}, gptq(bits=8)),
    "packed": Quantiser(_compressed("pack-quantized", 4), packed()),
    "packed-asymmetric": Quantiser(_compressed("pack-quantized", 4, symmetric=False), packed(symmetric=False)),
    "packed-act-order": Quantiser(_compressed("pack-quantized", 4), packed(act_order=True)),
    "packed-8": Quantiser(_compressed("pack-quantized", 8), packed(bits=8)),
    "signed": Quantiser(_compressed("int-quantized", 8, strategy="channel"), signed()),
    "signed-asymmetric": Quantiser(_compressed("int-quantized", 8, symmetric=False), signed(symmetric=False)),
}
PERMUTED = ("gptq-act-order", "packed-act-order")
IN_4_BITS = ("awq", "gptq", "gptq-v2", "gptq-v2-of-gptqmodel", "packed", "packed-asymmetric")
"""Those whose groups are kept by an int4 engine."""
