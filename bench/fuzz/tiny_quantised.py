"""A tiny model whose layers are integers, in the layout of each quantiser. Any integers are valid, so all are alike."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor

from bench.fuzz.tiny_models import CONFIG, GROUP
from ringkv.models.config import parse_config
from ringkv.weights.files import SINGLE


class Quantiser(NamedTuple):
    """Its quantization_config, and what it stores for a matrix [out, in]: tensors by suffix."""

    settings: Mapping[str, Any]
    layer: Callable[[int, int], Mapping[str, Tensor]]


def _awq(rows: int, columns: int) -> Mapping[str, Tensor]:
    groups = columns // GROUP
    scales = torch.full((groups, rows), 0.01).half()
    return {"qweight": _words(columns, rows // 8), "qzeros": _words(groups, rows // 8), "scales": scales}


def _gptq(rows: int, columns: int) -> Mapping[str, Tensor]:
    order = torch.arange(columns, dtype=torch.int32) // GROUP
    return {**_awq(rows, columns), "qweight": _words(columns // 8, rows), "g_idx": order}


def _packed(rows: int, columns: int) -> Mapping[str, Tensor]:
    scales, shape = torch.full((rows, columns // GROUP), 0.01).bfloat16(), torch.tensor([rows, columns])
    zeros = _words(rows // 8, columns // GROUP)
    words = _words(rows, columns // 8)
    return {"weight_packed": words, "weight_scale": scales, "weight_shape": shape, "weight_zero_point": zeros}


def _signed(rows: int, columns: int) -> Mapping[str, Tensor]:
    return {"weight": torch.full((rows, columns), -3, dtype=torch.int8), "weight_scale": torch.full((rows, 1), 0.01)}


def _words(*shape: int) -> Tensor:
    return torch.full(shape, 0x3C3C3C3C, dtype=torch.int32)


def _compressed(format: str, bits: int, strategy: str) -> Mapping[str, Any]:
    groups = {"all": {"weights": {"type": "int", "num_bits": bits, "strategy": strategy}}}
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": groups}


QUANTISERS: Mapping[str, Quantiser] = {
    "awq": Quantiser({"quant_method": "awq", "bits": 4}, _awq),
    "gptq": Quantiser({"quant_method": "gptq", "bits": 4}, _gptq),
    "packed": Quantiser(_compressed("pack-quantized", 4, "group"), _packed),
    "signed": Quantiser(_compressed("int-quantized", 8, "channel"), _signed),
}


@cache
def quantised_files(name: str) -> Mapping[str, bytes]:
    """Return config.json and the weights."""
    quantiser, tensors = QUANTISERS[name], {}
    for full, shape in parse_config(CONFIG).tensors.items():
        if full.endswith("_proj.weight"):
            module = full.removesuffix("weight")
            tensors |= {f"{module}{suffix}": part for suffix, part in quantiser.layer(*shape).items()}
        else:
            tensors[full] = torch.full(shape, 0.01).bfloat16()
    config = {**CONFIG, "quantization_config": quantiser.settings}
    return {"config.json": json.dumps(config).encode(), SINGLE: save(tensors)}
