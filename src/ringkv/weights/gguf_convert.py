"""gguf_convert: converts a GGUF's configuration and weights to Hugging Face layout, in bfloat16, a block at a time.

Matrices of 4 bits, and those of 5, 6 or 8, are also stored without dequantising them, in two files that
`--weights int4` and `--weights int8` load. The tokenizer and generation_config.json are written by `text`.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ringkv.base.progress import Progress, silent
from ringkv.weights import gguf_byte_groups, gguf_groups
from ringkv.weights.files import BYTE_GROUPS, GROUPS, SINGLE
from ringkv.weights.gguf import GGUF
from ringkv.weights.gguf_config import config_json
from ringkv.weights.gguf_source import Rows, Source
from ringkv.weights.gguf_sources import sources
from ringkv.weights.group_layout import BYTE_PARTS, LEAST, PARTS
from ringkv.weights.mxfp4_shapes import unpacked_shapes
from ringkv.weights.safetensors_writer import SafetensorsWriter, TensorSpec

Parts = Mapping[str, tuple[str, int]]


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
    has_minimums = {kind: one.has_minimums for kind, one in gguf_byte_groups.KINDS.items()}
    return _specs(found, lambda source: BYTE_PARTS | (LEAST if has_minimums[gguf.kind(source.name)] else {}))


def _four_bits(gguf: GGUF) -> dict[str, Rows]:
    """Return the layers' four-bit matrices. A vector in four bits is only dequantised."""
    return _of_kinds(gguf, gguf_groups.KINDS)


def _in_bytes(gguf: GGUF) -> dict[str, Rows]:
    """Return the layers' matrices of 5, 6 or 8 bits."""
    found = _of_kinds(gguf, gguf_byte_groups.KINDS)
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
