"""A tiny model in each layout, for fuzzing, and what a server does with one until its weights are packed.

A quantised model's layers are any integers, as all are valid.
"""

import json
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from bench.fuzz.mutate import inner
from ringkv.engine.load import load
from ringkv.models.config import load_config, parse_config
from ringkv.models.decoder import Decoder
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.residency.locate import locate
from ringkv.weights.files import GROUPS, SINGLE
from ringkv.weights.safetensors_writer import SafetensorsWriter, TensorSpec

MEMORY = 4 << 30  # bytes that the planned engine may take
GROUP = 32
CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 288, "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 256, "rope_theta": 10000.0,
    "rope_scaling": None, "tie_word_embeddings": False, "eos_token_id": [257], "bos_token_id": 256,
}  # fmt: skip
GENERATION: Mapping[str, Any] = {"eos_token_id": 257, "bos_token_id": 256}


@cache
def config_files() -> Mapping[str, bytes]:
    """Return the small files of the directory."""
    files = {
        "config.json": CONFIG,
        "generation_config.json": GENERATION,
        "tokenizer.json": json.loads(inner().to_str()),
    }
    return {name: json.dumps(value).encode() for name, value in files.items()}


@cache
def weight_files() -> Mapping[str, bytes]:
    """Return the weights, and groups of two of the matrices in four bits."""
    shapes = parse_config(CONFIG).tensors
    down = [name for name in shapes if name.endswith("down_proj.weight")]
    groups: dict[str, TensorSpec] = {}
    for name in down:
        rows, columns = shapes[name]
        half = TensorSpec((rows, columns // GROUP), "F16")
        groups |= {f"{name}.q": TensorSpec((rows, columns // 2), "U8"), f"{name}.scale": half, f"{name}.least": half}
    return {SINGLE: _written({name: TensorSpec(shape) for name, shape in shapes.items()}), GROUPS: _written(groups)}


def _written(specs: Mapping[str, TensorSpec]) -> bytes:
    with tempfile.TemporaryDirectory() as name:
        with SafetensorsWriter(Path(name) / "x", specs) as writer:
            for spec in specs.values():
                writer.write(np.full(spec.bytes, 0x3C, np.uint8))
        return (Path(name) / "x").read_bytes()


def in_folder(files: Mapping[str, bytes], run: Callable[[Path], object]) -> None:
    """Call `run` with a directory of these files."""
    with tempfile.TemporaryDirectory() as name:
        for file, content in files.items():
            (Path(name) / file).write_bytes(content)
        run(Path(name))


def serve(model: Path) -> None:
    """Find, plan and load a model as `ringkv serve` does, in each format of weights."""
    torch.set_num_threads(1)
    folder = locate(str(model))
    config = load_config(folder)
    resolve(folder, config, Options(slots=2, graphs="off"), MEMORY)
    Decoder(config, torch.bfloat16, torch.device("cpu"))
    for weights in ("bf16", "int8", "int4"):
        load(folder, config, torch.bfloat16, torch.device("cpu"), lambda *_: None, weights)


def serve_files(files: Mapping[str, bytes]) -> None:
    in_folder(files, serve)


def check_ordinary() -> None:
    """Serve the directory before it is damaged, which also loads what each case would import."""
    serve_files({**config_files(), **weight_files()})


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
