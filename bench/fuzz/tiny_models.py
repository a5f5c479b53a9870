"""A tiny model in each layout, for fuzzing, and what a server does with one until its weights are packed."""

import json
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.fuzz.bytewise import inner
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
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 288,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "eos_token_id": [257],
    "bos_token_id": 256,
}
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
    return {
        SINGLE: _written({name: TensorSpec(shape) for name, shape in shapes.items()}),
        GROUPS: _written(groups),
    }


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


def check_ordinary() -> None:
    """Serve the directory before it is damaged, which also loads what each case would import."""
    in_folder({**config_files(), **weight_files()}, serve)
