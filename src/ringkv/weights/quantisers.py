"""quantisers: which matrices of a checkpoint are integers, by the `quant_method` of its config.json."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from ringkv.base.json_file import read_object
from ringkv.weights import awq, compressed_tensors, gptq
from ringkv.weights.integer_matrix import IntegerMatrix

Reader = Callable[[Mapping[str, Any], Mapping[str, Any]], list[IntegerMatrix]]

READERS: Mapping[str, Reader] = {
    "awq": awq.matrices,
    "gptq": gptq.matrices,
    "compressed-tensors": compressed_tensors.matrices,
    "ringkv-rotated": compressed_tensors.matrices,  # `rotate.tensors` writes them
}
"""Each takes open files by tensor and the quantization_config, which `models` has checked."""


def integer_matrices(directory: Path, files: Mapping[str, Any]) -> dict[str, IntegerMatrix]:
    """Return the matrices of integers by name; none if the configuration has no quantiser of these.

    Raises BadWeights for tensors that do not belong together.
    """
    path = directory / "config.json"
    settings = (read_object(path).get("quantization_config") or {}) if path.is_file() else {}
    read = READERS.get(str(settings.get("quant_method"))) if isinstance(settings, dict) else None
    return {} if read is None else {matrix.name: matrix for matrix in read(files, settings)}


Shapes = Mapping[str, tuple[int, ...]]


def whole_shapes(found: Shapes, integers: Mapping[str, IntegerMatrix], unused: Collection[str]) -> Shapes:
    """Return shapes without `unused` tensors, and with one tensor for the parts of a matrix."""
    parts = {*unused, *(part for matrix in integers.values() for part in matrix.parts)}
    whole = {name: matrix.shape for name, matrix in integers.items()}
    return {name: shape for name, shape in found.items() if name not in parts} | whole


def unused_biases(
    files: Mapping[str, Any], integers: Mapping[str, IntegerMatrix], expected: Collection[str]
) -> set[str]:
    """Return biases of zeros that the model does not have: some quantisers write one for every layer."""
    biases = {f"{name.removesuffix('.weight')}.bias" for name in integers} & files.keys() - set(expected)
    return {name for name in biases if not files[name].get_tensor(name).any()}
