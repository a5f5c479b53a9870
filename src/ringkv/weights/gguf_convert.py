"""gguf_convert: converts a GGUF's configuration and weights to Hugging Face layout, in bfloat16, a block at a time.

Four-bit matrices are also stored without dequantising them, in a file of their own that `--weights int4` loads. The
tokenizer and generation_config.json are written by `text`.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ringkv.base.errors import UnsupportedModel
from ringkv.base.progress import Progress, silent
from ringkv.base.shown import shown_names
from ringkv.weights.files import GROUPS, SINGLE
from ringkv.weights.gguf import GGUF
from ringkv.weights.gguf_architectures import SHARED, Architecture, architecture_of, kind_of
from ringkv.weights.gguf_config import ROPE_TENSORS, config_json, head_counts
from ringkv.weights.gguf_groups import GROUP, KINDS
from ringkv.weights.safetensors_writer import ITEM_BYTES, SafetensorsWriter, TensorSpec


class Source(NamedTuple):
    """Where a GGUF has a tensor of the Hugging Face layout: its name there, and which matrix of a stack it is."""

    name: str
    shape: tuple[int, ...]  # in Hugging Face layout
    expert: int | None = None


def write_config(gguf: GGUF, directory: Path) -> None:
    """Write config.json. Raises UnsupportedModel or BadWeights before writing anything."""
    (directory / "config.json").write_text(json.dumps(config_json(gguf), indent=2) + "\n")


def shapes(gguf: GGUF) -> Mapping[str, tuple[int, ...]]:
    """Return the tensors that `write_weights` writes. Raises UnsupportedModel for one of no supported architecture."""
    return {name: source.shape for name, source in _sources(gguf).items()}


def _sources(gguf: GGUF) -> dict[str, Source]:
    """Return the source of each tensor in Hugging Face layout."""
    architecture = architecture_of(gguf)
    stored = (name for name in gguf.names if name not in ROPE_TENSORS)
    return {ours: source for name in stored for ours, source in _translated(gguf, name, architecture)}


def write_weights(gguf: GGUF, directory: Path, progress: Progress = silent) -> None:
    """Write model.safetensors, of tensors whose `shapes` have been checked. Raises BadWeights for infinite values."""
    sources = _sources(gguf)
    specs = {name: TensorSpec(source.shape) for name, source in sources.items()}
    done, total = 0, weight_bytes(gguf)
    with SafetensorsWriter(directory / SINGLE, specs) as writer:
        for source in sources.values():
            for values in gguf.rows(source.name, _row_order(gguf, source.name), expert=source.expert):
                writer.append(values)
                done += values.size * ITEM_BYTES
                progress(done, total, "converting weights")


def write_groups(gguf: GGUF, directory: Path) -> None:
    """Write the layers' four-bit matrices, if there are any, as NAME.q, NAME.scale and NAME.least (the minimum)."""
    specs: dict[str, TensorSpec] = {}
    for name, source in (found := _four_bits(gguf)).items():
        rows, columns = source.shape
        shared = TensorSpec((rows, columns // GROUP), "F16")
        specs |= {f"{name}.q": TensorSpec((rows, columns // 2), "U8"), f"{name}.scale": shared, f"{name}.least": shared}
    if not found:
        return
    with SafetensorsWriter(directory / GROUPS, specs) as writer:
        for source in found.values():
            for values in gguf.groups(source.name, _row_order(gguf, source.name), source.expert):
                writer.write(values)


def _four_bits(gguf: GGUF) -> dict[str, Source]:
    """Return the layers' four-bit matrices. A vector in four bits is only dequantised."""
    return {
        name: source
        for name, source in _sources(gguf).items()
        if source.name.startswith("blk.") and gguf.kind(source.name) in KINDS and len(gguf.shape(source.name)) > 1
    }


def weight_bytes(gguf: GGUF) -> int:
    """Bytes that `write_weights` writes."""
    return sum(math.prod(gguf.shape(name)) * ITEM_BYTES for name in gguf.names if name not in ROPE_TENSORS)


def group_bytes(gguf: GGUF) -> int:
    """Bytes that `write_groups` writes: per 32 elements 16 bytes, a scale and a minimum."""
    return sum(math.prod(source.shape) // GROUP * 20 for source in _four_bits(gguf).values())


def _translated(gguf: GGUF, name: str, architecture: Architecture) -> Iterator[tuple[str, Source]]:
    """Yield what a tensor is called in Hugging Face layout: one name, or one for each expert of a stack.

    `blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`.
    """
    called, suffix, prefix = _split(name)
    parts = (architecture.modules if prefix else SHARED).get(called)
    if parts is None:
        raise UnsupportedModel(
            f"{gguf.path} has a tensor {shown_names([name])}, which belongs to no architecture that ringkv runs"
        )
    for module, shape, expert in parts(gguf.shape(name)):
        yield f"{prefix}{module}.{suffix}", Source(name, shape, expert)


def _split(name: str) -> tuple[str, str, str]:
    """Return a tensor's name in its layer, its suffix, and the layer in Hugging Face layout: "" outside of layers."""
    if layer := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
        return layer[2], layer[3], f"model.layers.{layer[1]}."
    part, _, suffix = name.rpartition(".")
    return (part, suffix, "") if suffix == "weight" else ("", "", "")


def _row_order(gguf: GGUF, name: str) -> npt.NDArray[np.intp] | None:
    """Return the GGUF row for each row of a query or key projection; None if rows are in order already.

    In heads of Llama and its relatives GGUF interleaves the halves of the rotary pairs; Hugging Face stores them one
    after the other.
    """
    if not architecture_of(gguf).paired:
        return None
    projection = re.fullmatch(r"blk\.\d+\.attn_([qk])\.(weight|bias)", name)
    if not projection:
        return None
    heads, kv_heads = head_counts(gguf, kind_of(gguf))
    rows = np.arange(gguf.shape(name)[0])
    return rows.reshape(heads if projection[1] == "q" else kv_heads, -1, 2).swapaxes(1, 2).reshape(-1)
