"""assemble: writes a checkpoint in Hugging Face layout from its parts, in the shards of the source.

Shards are streamed, a tensor at a time.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ringkv.base.json_file import read_object
from ringkv.rotate.tensors import origin
from ringkv.weights.files import INDEX, SINGLE
from ringkv.weights.open_files import open_file
from ringkv.weights.safetensors_writer import SafetensorsWriter, TensorSpec

COPIED = ("*.json", "*.jinja", "*.txt", "*.model", "LICENSE*", "NOTICE*")
NOT_COPIED = ("config.json", INDEX, "seal.json", "stamp.json")  # describe the source; the copy has its own, or none


def copy_files(source: Path, into: Path) -> None:
    """Copy the tokenizer, the generation settings and the licence."""
    for path in {path for pattern in COPIED for path in source.glob(pattern)}:
        if path.is_file() and path.name not in NOT_COPIED:
            shutil.copyfile(path, into / path.name)


def write_config(source: Path, into: Path, changes: Mapping[str, Any]) -> None:
    config = read_object(source / "config.json") | dict(changes)
    (into / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def write_shards(source: Path, parts: list[Path], into: Path, beside: Mapping[str, str]) -> None:
    """Write each tensor to the shard that has it in the source.

    beside: for tensors that the source lacks, one whose shard they go to.
    """
    source_index = source / INDEX
    shard_of: Mapping[str, str] = read_object(source_index)["weight_map"] if source_index.is_file() else {}
    places: dict[str, Any] = {}  # the open file of each tensor
    for file in map(open_file, parts):
        places |= dict.fromkeys(file.keys(), file)
    shards: dict[str, list[str]] = {}
    for name in places:
        tensor = origin(name)
        shards.setdefault(shard_of.get(beside.get(tensor, tensor), SINGLE), []).append(name)
    for shard, names in shards.items():
        _write(into / shard, names, places)
    if shard_of:
        size = sum((into / shard).stat().st_size for shard in shards)
        weight_map = {name: shard for shard, names in shards.items() for name in names}
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (into / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write(path: Path, names: list[str], places: Mapping[str, Any]) -> None:
    path.unlink(missing_ok=True)  # of an interrupted run
    slices = {name: places[name].get_slice(name) for name in names}
    specs = {name: TensorSpec(tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
    with SafetensorsWriter(path, specs) as writer:
        for name in names:
            writer.write(places[name].get_tensor(name).view(torch.uint8).numpy())
