"""Converts a GGUF's configuration and weights to Hugging Face layout, in bfloat16, a block at a time.

Matrices of 4 bits, and those of 5, 6 or 8, are also stored without dequantising them, in two files that
`--weights int4` and `--weights int8` load. The tokenizer and generation_config.json are written by `text`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ringkv.base.errors import UnsupportedModel
from ringkv.base.progress import Progress, silent
from ringkv.base.shown import shown_names
from ringkv.weights.files import SINGLE
from ringkv.weights.gguf.architectures import Architecture, architecture_of
from ringkv.weights.gguf.config import config_json
from ringkv.weights.gguf.fields import head_counts, layer_count, sharing_layers
from ringkv.weights.gguf.file import GGUF
from ringkv.weights.gguf.groups import TYPES
from ringkv.weights.gguf.rope import ROPE_TENSORS
from ringkv.weights.gguf.source import Source, StoredRows
from ringkv.weights.group_layout import INT4, INT8, GroupLayout
from ringkv.weights.safetensors_writer import SafetensorsWriter, TensorSpec
from ringkv.weights.shapes import unpacked_shapes

LAYER = re.compile(r"blk\.(\d{1,6})\.")
KEYS_AND_VALUES = re.compile(r"\.attn_[kv](_norm)?\.")
PAIRED = ("attn_q", "attn_k")
"""Projections whose rows are those of heads that rotate."""


def write_config(gguf: GGUF, directory: Path) -> None:
    """Write config.json. Raises UnsupportedModel or BadWeights before writing anything."""
    (directory / "config.json").write_text(json.dumps(config_json(gguf), indent=2) + "\n")


def shapes(gguf: GGUF) -> Mapping[str, tuple[int, ...]]:
    """Return the tensors that `write_weights` writes, with those in MXFP4 as they are unpacked.

    Raises UnsupportedModel for a tensor of no supported architecture.
    """
    return unpacked_shapes({name: source.spec.shape for name, source in sources(gguf).items()})


def write_weights(gguf: GGUF, directory: Path, progress: Progress = silent) -> None:
    """Write model.safetensors, of tensors whose `shapes` have been checked. Raises BadWeights for infinite values."""
    every = sources(gguf)
    done, total = 0, _bytes(source.spec for source in every.values())
    with SafetensorsWriter(directory / SINGLE, {name: source.spec for name, source in every.items()}) as writer:
        for source in every.values():
            for values in source.blocks(gguf):
                writer.write(values)
                done += values.nbytes
                progress(done, total, "converting weights")


def write_groups(gguf: GGUF, directory: Path) -> None:
    """Write the layers' matrices of 4 bits, and those of 5, 6 or 8, as tensors NAME.PART of a file for each layout.

    A file that would have no matrices is not written.
    """
    for layout in (INT4, INT8):
        matrices = _matrices(gguf, layout)
        if not matrices:
            continue
        with SafetensorsWriter(directory / layout.file, _specs(gguf, matrices)) as writer:
            for rows in matrices.values():
                for values in gguf.groups(rows.name, rows.order(gguf), rows.expert):
                    writer.write(values)


def _specs(gguf: GGUF, matrices: Mapping[str, StoredRows]) -> dict[str, TensorSpec]:
    return {
        f"{name}.{part}": TensorSpec((rows.spec.shape[0], rows.spec.shape[1] // elements), dtype)
        for name, rows in matrices.items()
        for part, (dtype, elements) in TYPES[gguf.kind(rows.name)].parts.items()
    }


def _matrices(gguf: GGUF, layout: GroupLayout) -> dict[str, StoredRows]:
    """Return the layers' matrices of a layout. A vector is only dequantised.

    In bytes, so is a matrix of an odd number of rows: behind an odd number of bytes a float16 cannot be mapped.
    """
    return {
        name: rows
        for name, rows in sources(gguf).items()
        if isinstance(rows, StoredRows) and rows.name.startswith("blk.") and len(rows.spec.shape) > 1
        if (grouped := TYPES.get(gguf.kind(rows.name))) and grouped.layout is layout
        if layout is INT4 or rows.spec.shape[0] % 2 == 0
    }


def weight_bytes(gguf: GGUF) -> int:
    """Bytes that `write_weights` writes."""
    return _bytes(source.spec for source in sources(gguf).values())


def group_bytes(gguf: GGUF) -> int:
    """Bytes that `write_groups` writes."""
    return sum(_bytes(_specs(gguf, _matrices(gguf, layout)).values()) for layout in (INT4, INT8))


def _bytes(specs: Iterable[TensorSpec]) -> int:
    return sum(spec.bytes for spec in specs)


def sources(gguf: GGUF) -> dict[str, Source]:
    """Return the source of each tensor. Raises UnsupportedModel for a tensor of no supported architecture."""
    architecture, names = architecture_of(gguf), _used(gguf)
    every: dict[str, Source] = {ours: rows for name in names for ours, rows in _translated(gguf, name, architecture)}
    for layer in sorted({_layer(name) for name in names} - {-1}):
        for ours, merged in architecture.merged(gguf, f"blk.{layer}."):
            every[f"model.layers.{layer}.{ours}"] = merged
    return every


def _used(gguf: GGUF) -> list[str]:
    """Return the tensors that are not replaced by parameters.

    Those of layers that predict further tokens are left out, and keys and values of layers that share a cache.
    """
    used = [name for name in gguf.names if name not in ROPE_TENSORS]
    if gguf.number(".nextn_predict_layers", 0):
        layers = layer_count(gguf)
        used = [name for name in used if _layer(name) < layers]
    if sharing := sharing_layers(gguf):
        first = layer_count(gguf) - sharing
        used = [name for name in used if _layer(name) < first or not KEYS_AND_VALUES.search(name)]
    return used


def _layer(name: str) -> int:
    """Return the number of a tensor's layer; -1 if it is outside of layers."""
    return int(layer[1]) if (layer := LAYER.match(name)) else -1


def _translated(gguf: GGUF, name: str, architecture: Architecture) -> Iterator[tuple[str, StoredRows]]:
    """Yield what a tensor is called in Hugging Face layout: one name, or one for each expert of a stack.

    `blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`.
    """
    called, suffix, prefix = _split(name)
    parts = (architecture.modules if prefix else architecture.shared).get(called)
    if parts is None:
        raise UnsupportedModel(
            f"{gguf.path} has a tensor {shown_names([name])}, which belongs to no architecture that ringkv runs"
        )
    heads = head_counts(gguf)[PAIRED.index(called)] if architecture.paired and called in PAIRED else None
    shift = architecture.norm_shift if called.endswith("_norm") else 0.0
    for part in parts(suffix, gguf.shape(name)):
        yield f"{prefix}{part.name}", StoredRows(name, part.spec, part.expert, heads, shift)


def _split(name: str) -> tuple[str, str, str]:
    """Return a tensor's name in its layer, its suffix, and the layer in Hugging Face layout: "" outside of layers."""
    if layer := re.fullmatch(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias|scale)", name):
        called = f"{layer[2]}.scale" if layer[3] == "scale" else layer[2]
        return called, layer[3], f"model.layers.{layer[1]}."
    part, _, suffix = name.rpartition(".")
    return (part, suffix, "") if suffix == "weight" else ("", "", "")
