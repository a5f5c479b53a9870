"""GGUF: one checked GGUF file, or its parts: metadata by key, and tensors by name, dequantised in blocks of rows.

Importing this module does not import the `gguf` package; opening a file does.
"""

import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.shown import shown, shown_names
from ringkv.weights.gguf import groups
from ringkv.weights.gguf.header import TensorPlace, is_utf8, read_header
from ringkv.weights.gguf.split import headers

BLOCK_ELEMENTS = 1 << 22  # elements dequantised at a time: 16 MiB as float32
PLAIN = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}
"""numpy's names of the types that are not stored in blocks."""


class _Mapped(NamedTuple):
    """One tensor in a mapped file."""

    place: TensorPlace
    bytes: npt.NDArray[np.uint8]
    path: Path


class GGUF:
    """A readable GGUF file, memory-mapped. Shapes are row-major, the reverse of the file's order."""

    def __init__(self, path: Path) -> None:
        """Open a file, or all parts of a split one by its first.

        Raises BadWeights if a file is truncated, corrupt or missing, UnsupportedModel for a big-endian one.
        """
        self.path = path
        header = read_header(path)
        self._metadata = header.metadata
        self._tensors: dict[str, _Mapped] = {}
        every = headers(path, header, self.number("split.no", 0), self.number("split.count", 1))
        for part, header in every.items():
            mapped = np.memmap(part, np.uint8, mode="r")
            self._tensors |= {name: _Mapped(place, mapped, part) for name, place in header.tensors.items()}
        self._check_types()

    @cached_property
    def architecture(self) -> str:
        """general.architecture, which every metadata key of the model begins with."""
        return self.text("general.architecture", "none")

    def get(self, key: str, default: Any = None) -> Any:
        """Return a metadata value: int, float, bool, str, or a list of them.

        A key that begins with a dot is one of the model: in a Llama, ".block_count" is "llama.block_count".
        """
        return self._metadata.get(self.key(key), default)

    def key(self, key: str) -> str:
        return f"{self.architecture}{key}" if key.startswith(".") else key

    def number(self, key: str, default: int | None = None) -> int:
        """Return a whole number of at least 0. Raises BadWeights for anything else."""
        value = self.get(key, default)
        if type(value) is not int or value < 0:
            raise self.wrong(key, "a whole number")
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        """Return a whole number above 0; a list that has one for each layer must repeat it.

        Raises BadWeights for anything else, UnsupportedModel if layers differ.
        """
        value = self.get(key, default)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, list):
            raise UnsupportedModel(
                f"{self.path} has a different {self.key(key)} in each layer; ringkv needs one for all"
            )
        if type(value) is not int or value < 1:
            raise self.wrong(key, "a positive number")
        return value

    def decimal(self, key: str, default: float | None = None) -> float:
        """Return a finite number. Raises BadWeights for anything else."""
        value = self.get(key, default)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self.wrong(key, "a finite number")
        return float(value)

    def text(self, key: str, default: str) -> str:
        """Return a text. Raises BadWeights for anything else, and for one that is not UTF-8."""
        value = self.get(key, default)
        if not isinstance(value, str) or not is_utf8([value]):
            raise self.wrong(key, "a text")
        return value

    def wrong(self, key: str, needed: str) -> BadWeights:
        """Return the error for a metadata value that is missing, or is not what is needed."""
        value, name = self.get(key), self.key(key)
        fault = f"no {name}" if value is None else f"{name} {shown(value)}"
        return BadWeights(f"{self.path} has {fault}, {needed} is needed; fetch another copy of the model")

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def has(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape. Raises BadWeights if the file lacks the tensor."""
        if name not in self._tensors:
            raise BadWeights(f"{self.path} has no tensor {name}; fetch another copy of the model")
        return self._tensors[name].place.shape

    def tensor(self, name: str, expert: int | None = None) -> npt.NDArray[np.float32]:
        """Return a dequantised vector or matrix; `expert` as for `rows`."""
        return np.concatenate(list(self.rows(name, expert=expert)))

    def rows(
        self,
        name: str,
        order: npt.NDArray[np.intp] | None = None,
        elements: int = BLOCK_ELEMENTS,
        expert: int | None = None,
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Yield dequantised rows, about `elements` elements at a time; `order` [shape[0]] permutes the rows.

        expert: the matrix to read of a stack, [experts, rows, columns]. Rows are quantised separately, so they can be
        permuted before they are dequantised.
        Raises BadWeights if a value is not finite.
        """
        data = self.data(name, expert)
        shape = self.shape(name)[-data.ndim :]
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
        return str(self._tensors[name].place.type.name)

    def groups(
        self, name: str, order: npt.NDArray[np.intp] | None = None, expert: int | None = None
    ) -> list[npt.NDArray[Any]]:
        """Return the parts of a matrix in groups without dequantising it; `order` and `expert` as for `rows`."""
        data = self.data(name, expert)
        parts = groups.split(self.kind(name), np.ascontiguousarray(data if order is None else data[order]))
        if not all(np.isfinite(part).all() for part in parts if part.dtype == np.float16):
            raise self.not_finite(name)
        return parts

    def data(self, name: str, expert: int | None = None) -> npt.NDArray[Any]:
        """Return the mapped tensor, or one matrix of a stack: its elements, or its blocks as rows of bytes."""
        place, mapped, _ = self._tensors[name]
        stored = mapped[place.start : place.start + place.bytes].view(PLAIN.get(self.kind(name), "u1"))
        data = stored.reshape(*place.shape[:-1], -1)
        return data if expert is None else data[expert]

    def _values(self, name: str, data: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        from gguf.quants import dequantize

        with np.errstate(all="ignore"):  # overflow is refused below
            values: npt.NDArray[np.float32] = dequantize(np.ascontiguousarray(data), self._tensors[name].place.type)
        if not np.isfinite(values).all():
            raise self.not_finite(name)
        return values

    def not_finite(self, name: str) -> BadWeights:
        """Return the error for a tensor with infinite values, or with values that are no numbers."""
        return BadWeights(
            f"{self._tensors[name].path} holds values that are not finite in {shown_names([name])}: it is corrupt; "
            "fetch it again"
        )

    def _check_types(self) -> None:
        types = {tensor.place.type for tensor in self._tensors.values()}
        if unknown := sorted(type.name for type in types if not _can_dequantise(type)):
            raise UnsupportedModel(
                f"{self.path} holds tensors of type {', '.join(unknown)}, which cannot be dequantised; "
                "fetch the model in another type, such as Q8_0 or Q4_K_M"
            )


def _can_dequantise(type: Any) -> bool:
    from gguf import GGML_QUANT_SIZES
    from gguf.quants import dequantize

    _, block_bytes = GGML_QUANT_SIZES[type]
    try:
        dequantize(np.zeros((1, block_bytes), np.uint8), type)
    except NotImplementedError:
        return False
    return True
