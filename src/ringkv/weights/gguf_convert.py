"""gguf_convert: converts a GGUF's configuration and weights to Hugging Face layout, in bfloat16, a block at a time.

Four-bit matrices are also stored without dequantising them, in a file of their own that `--weights int4` loads. The
tokenizer and generation_config.json are written by `text`.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from ringkv.base.progress import Progress, silent
from ringkv.weights.files import GROUPS, SINGLE
from ringkv.weights.gguf import GGUF
from ringkv.weights.gguf_config import config_json
from ringkv.weights.gguf_groups import GROUP, KINDS
from ringkv.weights.gguf_source import Rows, Source
from ringkv.weights.gguf_sources import sources
from ringkv.weights.mxfp4_shapes import unpacked_shapes
from ringkv.weights.safetensors_writer import SafetensorsWriter, TensorSpec


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
    done, total = 0, _bytes(found)
    with SafetensorsWriter(directory / SINGLE, {name: source.spec for name, source in found.items()}) as writer:
        for source in found.values():
            for values in source.blocks(gguf):
                writer.write(values)
                done += values.nbytes
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
            for values in gguf.groups(source.name, source.order(gguf), source.expert):
                writer.write(values)


def _four_bits(gguf: GGUF) -> dict[str, Rows]:
    """Return the layers' four-bit matrices. A vector in four bits is only dequantised."""
    return {
        name: source
        for name, source in sources(gguf).items()
        if isinstance(source, Rows) and source.name.startswith("blk.")
        if gguf.kind(source.name) in KINDS and len(gguf.shape(source.name)) > 1
    }


def weight_bytes(gguf: GGUF) -> int:
    """Bytes that `write_weights` writes."""
    return _bytes(sources(gguf))


def _bytes(found: Mapping[str, Source]) -> int:
    return sum(source.spec.bytes for source in found.values())


def group_bytes(gguf: GGUF) -> int:
    """Bytes that `write_groups` writes: per 32 elements 16 bytes, a scale and a minimum."""
    return sum(math.prod(source.shape) // GROUP * 20 for source in _four_bits(gguf).values())
