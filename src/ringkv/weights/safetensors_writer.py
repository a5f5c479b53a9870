"""SafetensorsWriter: bfloat16 tensors to one safetensors file, a block at a time, without torch.

The format is 8 bytes (little-endian length), a JSON header of that length, then the tensors' bytes back to back; sizes
are known beforehand, so nothing is held in memory. Source: the safetensors format description.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

ITEM_BYTES = 2  # bfloat16


class SafetensorsWriter:
    """Writes the tensors of `shapes` in that order: call `append` until every one is full."""

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._bytes_left = sum(_bytes(shape) for shape in shapes.values())
        self._file = path.open("xb")
        header = _header(shapes)
        self._file.write(len(header).to_bytes(8, "little") + header)

    def append(self, values: npt.NDArray[np.float32]) -> None:
        """Round the next values of the current tensor, in row order, and write them."""
        rounded = to_bfloat16(values)
        self._bytes_left -= rounded.nbytes
        self._file.write(rounded.data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._file.close()
        assert kind is not None or self._bytes_left == 0, f"{self._bytes_left} bytes were never written"


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Finite float32 to the bits of bfloat16: the upper half, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype("<u2")


def _bytes(shape: tuple[int, ...]) -> int:
    return math.prod(shape) * ITEM_BYTES


def _header(shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, shape in shapes.items():
        stop = start + _bytes(shape)
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)  # tensors start on 8 bytes
