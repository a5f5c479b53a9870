"""GGUF: one checked GGUF file: metadata by key, and tensors by name, dequantised in blocks of rows.

Importing this module does not import the `gguf` package; opening a file does.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.weights.gguf_groups import StoredGroups, groups

BLOCK_ELEMENTS = 1 << 22  # elements dequantised at a time: 16 MiB as float32


class GGUF:
    """A readable GGUF file, memory-mapped. Shapes are row-major, the reverse of the file's order."""

    def __init__(self, path: Path) -> None:
        """Raises BadWeights if the file is truncated or corrupt, UnsupportedModel for a split or big-endian one."""
        self.path = path
        self._reader = _read(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        if (parts := self.get("split.count", 0)) > 1:
            raise UnsupportedModel(f"{path} is one of {parts} parts; join them first (llama-gguf-split --merge)")
        self._check_types()

    def get(self, key: str, default: Any = None) -> Any:
        """Return a metadata value: int, float, bool, str, or a list of them."""
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    def rows(
        self, name: str, order: npt.NDArray[np.intp] | None = None, elements: int = BLOCK_ELEMENTS
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Yield dequantised rows, about `elements` elements at a time; `order` [shape[0]] permutes the rows.

        Rows are quantised separately, so they can be permuted before they are dequantised.
        Raises BadWeights if a value is not finite.
        """
        shape, data = self.shape(name), self._tensors[name].data
        if len(shape) == 1:  # a single row, so that its values are what `order` permutes
            values = self._values(name, data)
            yield values if order is None else values[order]
            return
        step = max(1, elements // shape[-1])
        for start in range(0, shape[0], step):
            block = slice(start, start + step)
            yield self._values(name, data[block] if order is None else data[order[block]])

    def kind(self, name: str) -> str:
        """Return a tensor's type, such as "Q4_K"."""
        return str(self._tensors[name].tensor_type.name)

    def groups(self, name: str, order: npt.NDArray[np.intp] | None = None) -> StoredGroups:
        """Return a four-bit matrix without dequantising it; `order` as for `rows`."""
        data = self._tensors[name].data
        return groups(self.kind(name), np.ascontiguousarray(data if order is None else data[order]))

    def _values(self, name: str, data: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        from gguf.quants import dequantize

        values: npt.NDArray[np.float32] = dequantize(np.ascontiguousarray(data), self._tensors[name].tensor_type)
        if not np.isfinite(values).all():
            raise BadWeights(f"{self.path} holds values that are not finite in {name}: it is corrupt; fetch it again")
        return values

    def _check_types(self) -> None:
        kinds = {tensor.tensor_type for tensor in self._tensors.values()}
        if unknown := sorted(kind.name for kind in kinds if not _can_dequantise(kind)):
            raise UnsupportedModel(
                f"{self.path} holds tensors of type {', '.join(unknown)}, which cannot be dequantised; "
                "fetch the model in another type, such as Q8_0 or Q4_K_M"
            )


def _can_dequantise(kind: Any) -> bool:
    from gguf import GGML_QUANT_SIZES
    from gguf.quants import dequantize

    _, block_bytes = GGML_QUANT_SIZES[kind]
    try:
        dequantize(np.zeros((1, block_bytes), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _read(path: Path) -> Any:
    """Return a `gguf.GGUFReader`."""
    from gguf import GGUFReader

    _check_header(path)
    try:
        reader = GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError) as error:
        raise BadWeights(
            f"{path} ({path.stat().st_size} bytes) is truncated or corrupt ({error}); fetch it again"
        ) from None
    if reader.byte_order == "S":
        raise UnsupportedModel(f"{path} was made for machines of the other byte order; fetch the usual file")
    return reader


def _check_header(path: Path) -> None:
    """Refuse files on which the reader would take long to fail: no magic, or counts that cannot fit in the file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(24)
    if header[:4] != b"GGUF":
        raise BadWeights(f"{path} is not a GGUF file: it does not begin with the letters GGUF; fetch it again")
    tensors, fields = (int.from_bytes(header[at : at + 8], "little") for at in (8, 16))
    smallest = 12  # bytes of a name's length and a type
    if len(header) < 24 or (tensors + fields) * smallest > size:
        raise BadWeights(f"{path} ({size} bytes) is truncated or corrupt: its header declares more; fetch it again")
