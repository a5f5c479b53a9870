"""SafetensorsWriter: writes tensors to one safetensors file, a block at a time, without torch.

The format is 8 bytes (little-endian length), a JSON header of that length, then the tensors' bytes back to back. Sizes
are known beforehand, so no tensor is held in memory. Source: the safetensors format description.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

BYTES = {"I64": 8, "I32": 4, "F32": 4, "BF16": 2, "F16": 2, "I8": 1, "U8": 1}  # of an element


class TensorSpec(NamedTuple):
    """Shape and dtype of a tensor to be written."""

    shape: tuple[int, ...]
    dtype: str = "BF16"

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * BYTES[self.dtype]


class SafetensorsWriter:
    """Writes tensors in the order of `specs`: call `write` until all of them are full."""

    def __init__(self, path: Path, specs: Mapping[str, TensorSpec]) -> None:
        self._bytes_left = sum(spec.bytes for spec in specs.values())
        self._file = path.open("xb")
        header = _header(specs)
        self._file.write(len(header).to_bytes(8, "little") + header)

    def write(self, values: npt.NDArray[Any]) -> None:
        """Write the next elements of the current tensor, in its own dtype."""
        self._bytes_left -= values.nbytes
        self._file.write(np.ascontiguousarray(values).data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._file.close()
        assert kind is not None or self._bytes_left == 0, f"{self._bytes_left} bytes were never written"


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Convert finite float32 to the bits of bfloat16: the upper half, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype("<u2")


def _header(specs: Mapping[str, TensorSpec]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, spec in specs.items():
        stop = start + spec.bytes
        header[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)  # tensors start on 8 bytes
