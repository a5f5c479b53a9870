"""Converts a GGUF's configuration and weights to Hugging Face layout, in bfloat16, a block at a time.

Matrices of 4 bits, and those of 5, 6 or 8, are also stored without dequantising them, in two files that
`--weights int4` and `--weights int8` load. The tokenizer and generation_config.json are written by `text`.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ringkv.base.errors import UnsupportedModel
from ringkv.base.progress import Progress, silent
from ringkv.base.shown import shown_names
from ringkv.weights.files import BYTE_GROUPS, GROUPS, SINGLE
from ringkv.weights.gguf import byte_groups, groups
from ringkv.weights.gguf.architectures import Architecture, architecture_of, kind_of
from ringkv.weights.gguf.config import config_json
from ringkv.weights.gguf.fields import head_counts, layer_count, sharing_layers
from ringkv.weights.gguf.file import GGUF
from ringkv.weights.gguf.rope import ROPE_TENSORS
from ringkv.weights.gguf.source import Rows, Source
from ringkv.weights.group_layout import BYTE_PARTS, LEAST, PARTS
from ringkv.weights.mxfp4_shapes import unpacked_shapes
from ringkv.weights.safetensors_writer import SafetensorsWriter, TensorSpec

Parts = Mapping[str, tuple[str, int]]
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
    found = sources(gguf)
    specs = _dequantised_specs(found)
    done, total = 0, _bytes(specs)
    with SafetensorsWriter(directory / SINGLE, specs) as writer:
        for source in found.values():
            for values in source.blocks(gguf):
                writer.write(values)
                done += values.nbytes
                progress(done, total, "converting weights")


def _dequantised_specs(found: Mapping[str, Source]) -> dict[str, TensorSpec]:
    return {name: source.spec for name, source in found.items()}


def write_groups(gguf: GGUF, directory: Path) -> None:
    """Write the layers' four-bit matrices, if there are any, as NAME.q, NAME.scale and NAME.least (the minimum)."""
    found = _four_bits(gguf)
    each = (gguf.groups(one.name, one.order(gguf), one.expert) for one in found.values())
    _write(directory / GROUPS, _four_bit_specs(found), each)


def write_byte_groups(gguf: GGUF, directory: Path) -> None:
    """Write the layers' matrices of 5, 6 or 8 bits, if there are any, in the parts that `group_file` reads."""
    found = _in_bytes(gguf)
    each = (gguf.byte_groups(one.name, one.order(gguf), one.expert) for one in found.values())
    _write(directory / BYTE_GROUPS, _byte_specs(gguf, found), each)


def _write(path: Path, specs: Mapping[str, TensorSpec], each: Iterable[Iterable[npt.NDArray[Any] | None]]) -> None:
    """Write a file of the parts of each matrix, except for those that are None; no file if there are no matrices."""
    if not specs:
        return
    with SafetensorsWriter(path, specs) as writer:
        for parts in each:
            for values in parts:
                if values is not None:
                    writer.write(values)


def _specs(found: Mapping[str, Rows], parts_of: Callable[[Rows], Parts]) -> dict[str, TensorSpec]:
    return {
        f"{name}.{part}": TensorSpec((source.shape[0], source.shape[1] // each), dtype)
        for name, source in found.items()
        for part, (dtype, each) in parts_of(source).items()
    }


def _four_bit_specs(found: Mapping[str, Rows]) -> dict[str, TensorSpec]:
    return _specs(found, lambda source: PARTS)


def _byte_specs(gguf: GGUF, found: Mapping[str, Rows]) -> dict[str, TensorSpec]:
    has_minimums = {kind: one.has_minimums for kind, one in byte_groups.KINDS.items()}
    return _specs(found, lambda source: BYTE_PARTS | (LEAST if has_minimums[gguf.kind(source.name)] else {}))


def _four_bits(gguf: GGUF) -> dict[str, Rows]:
    """Return the layers' four-bit matrices. A vector in four bits is only dequantised."""
    return _of_kinds(gguf, groups.KINDS)


def _in_bytes(gguf: GGUF) -> dict[str, Rows]:
    """Return the layers' matrices of 5, 6 or 8 bits."""
    found = _of_kinds(gguf, byte_groups.KINDS)
    # After an odd number of bytes the next float16 could not be mapped.
    return {name: source for name, source in found.items() if source.shape[0] % 2 == 0}


def _of_kinds(gguf: GGUF, kinds: Collection[str]) -> dict[str, Rows]:
    return {
        name: source
        for name, source in sources(gguf).items()
        if isinstance(source, Rows) and source.name.startswith("blk.")
        if gguf.kind(source.name) in kinds and len(source.shape) > 1
    }


def weight_bytes(gguf: GGUF) -> int:
    """Bytes that `write_weights` writes."""
    return _bytes(_dequantised_specs(sources(gguf)))


def group_bytes(gguf: GGUF) -> int:
    """Bytes that `write_groups` writes."""
    return _bytes(_four_bit_specs(_four_bits(gguf)))


def byte_group_bytes(gguf: GGUF) -> int:
    """Bytes that `write_byte_groups` writes."""
    return _bytes(_byte_specs(gguf, _in_bytes(gguf)))


def _bytes(specs: Mapping[str, TensorSpec]) -> int:
    return sum(spec.bytes for spec in specs.values())


def sources(gguf: GGUF) -> dict[str, Source]:
    """Return the source of each tensor. Raises UnsupportedModel for a tensor of no supported architecture."""
    architecture, names = architecture_of(gguf), _used(gguf)
    found = {ours: source for name in names for ours, source in _translated(gguf, name, architecture)}
    for at in sorted({_layer(name) for name in names} - {-1}):
        made = architecture.merged(gguf, f"blk.{at}.")
        found |= {f"model.layers.{at}.{ours}": source for ours, source in made}
    return found


def _used(gguf: GGUF) -> list[str]:
    """Return the tensors that are not replaced by parameters.

    Those of layers that predict further tokens are left out, and keys and values of layers that share a cache.
    """
    kind = kind_of(gguf)
    used = [name for name in gguf.names if name not in ROPE_TENSORS]
    if gguf.number(f"{kind}.nextn_predict_layers", 0):
        layers = layer_count(gguf, kind)
        used = [name for name in used if _layer(name) < layers]
    if sharing := sharing_layers(gguf, kind):
        first = layer_count(gguf, kind) - sharing
        used = [name for name in used if _layer(name) < first or not KEYS_AND_VALUES.search(name)]
    return used


def _layer(name: str) -> int:
    """Return the number of a tensor's layer; -1 if it is outside of layers."""
    return int(layer[1]) if (layer := LAYER.match(name)) else -1


def _translated(gguf: GGUF, name: str, architecture: Architecture) -> Iterator[tuple[str, Source]]:
    """Yield what a tensor is called in Hugging Face layout: one name, or one for each expert of a stack.

    `blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`.
    """
    called, suffix, prefix = _split(name)
    parts = (architecture.modules if prefix else architecture.shared).get(called)
    if parts is None:
        raise UnsupportedModel(
            f"{gguf.path} has a tensor {shown_names([name])}, which belongs to no architecture that ringkv runs"
        )
    heads = _paired_heads(gguf, called) if architecture.paired else None
    shift = architecture.norm_shift if called.endswith("_norm") else 0.0
    for part in parts(suffix, gguf.shape(name)):
        yield f"{prefix}{part.name}", Rows(name, part.shape, part.expert, part.dtype, heads, shift)


def _split(name: str) -> tuple[str, str, str]:
    """Return a tensor's name in its layer, its suffix, and the layer in Hugging Face layout: "" outside of layers."""
    if layer := re.fullmatch(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias|scale)", name):
        called = f"{layer[2]}.scale" if layer[3] == "scale" else layer[2]
        return called, layer[3], f"model.layers.{layer[1]}."
    part, _, suffix = name.rpartition(".")
    return (part, suffix, "") if suffix == "weight" else ("", "", "")


def _paired_heads(gguf: GGUF, called: str) -> int | None:
    """Return how many heads a projection's rows belong to, if they rotate."""
    return head_counts(gguf, kind_of(gguf))[PAIRED.index(called)] if called in PAIRED else None
