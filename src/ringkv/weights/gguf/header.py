"""The metadata and the tensors' places of a GGUF file, read within bounds. No torch.

The format is "GGUF", a version, the counts of tensors and fields, the fields, the tensors' places, then their bytes:

    field    key, type, value               text     length u64, bytes in UTF-8
    tensor   name, sizes, type, offset      array    type u32, length u64, values

Each length is compared with the bytes that are left before anything is read or allocated. The reader of the package
`gguf` does not, and loops or takes hundreds of bytes per element on a hostile file; its tables of types are used.
"""

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.shown import shown, shown_names

MAGIC, VERSIONS = b"GGUF", (2, 3)
LONGEST_NAME = 1 << 16  # bytes of a key or a tensor's name
LONGEST_TEXT = 1 << 24  # bytes of a text, such as a chat template
MOST_VALUES = 1 << 22  # array elements of a file; a vocabulary of 262,144 entries has 1.5 million
MOST_DIMENSIONS = 4
SMALLEST = 12  # bytes of a field or a tensor: a name's length and a type
TEXT, ARRAY = 8, 9  # types of values
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""struct's letter for each numeric type."""


@dataclass(frozen=True)
class TensorPlace:
    """One tensor. shape: row-major, the reverse of the file's order. start: its first byte in the file."""

    name: str
    type: Any  # gguf.GGMLQuantizationType
    shape: tuple[int, ...]
    start: int
    bytes: int


@dataclass(frozen=True)
class Header:
    metadata: Mapping[str, Any]  # values are int, float, bool, str (see `is_utf8`), or a list of one of them
    tensors: Mapping[str, TensorPlace]


def read_header(path: Path) -> Header:
    """Raises BadWeights for a truncated or corrupt file, UnsupportedModel for other byte orders and types."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise BadWeights(f"{path} is not a GGUF file: it does not begin with the letters GGUF; fetch it again")
        try:
            return _read(_Bounded(file, size))
        except BadWeights as fault:
            raise BadWeights(f"{path} ({size} bytes) is truncated or corrupt: {fault}; fetch it again") from None
        except UnsupportedModel as fault:
            raise UnsupportedModel(f"{path} {fault}") from None


def is_utf8(texts: Iterable[str]) -> bool:
    """Return whether texts of a header were valid UTF-8 in the file."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True


class _Bounded:
    """Reads a file of `size` bytes from front to back. Its errors, and those below, lack the file's name."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self.left, self._size = file, size - file.tell(), size
        self.values_left = MOST_VALUES

    @property
    def position(self) -> int:
        return self._size - self.left

    def take(self, count: int, what: str) -> bytes:
        if count > self.left:
            raise BadWeights(f"{what} needs {count:,} bytes, {self.left:,} are left")
        self.left -= count
        return self._file.read(count)

    def number(self, format: str, what: str) -> int:
        number: int = struct.unpack(f"<{format}", self.take(struct.calcsize(f"<{format}"), what))[0]
        return number

    def name(self, what: str) -> str:
        try:
            return self._bytes(what, LONGEST_NAME).decode()
        except UnicodeDecodeError as error:
            raise BadWeights(f"{what} is not valid UTF-8 ({error.reason})") from None

    def text(self, what: str) -> str:
        """Return a text with each byte that is not UTF-8 as a lone surrogate: few texts are used, see `is_utf8`."""
        return self._bytes(what, LONGEST_TEXT).decode(errors="surrogateescape")

    def _bytes(self, what: str, longest: int) -> bytes:
        if (length := self.number("Q", what)) > longest:
            raise BadWeights(f"{what} has {length:,} bytes, ringkv reads up to {longest:,}")
        return self.take(length, what)

    def count(self, what: str) -> int:
        """Return a count of things of at least `SMALLEST` bytes each."""
        count = self.number("Q", what)
        if count * SMALLEST > self.left:
            raise BadWeights(f"its header declares more than its bytes hold: {count:,} {what}")
        return count


def _read(file: _Bounded) -> Header:
    version = file.number("I", "the version")
    if version & 0xFFFF == 0:
        raise UnsupportedModel("was made for machines of the other byte order; fetch the usual file")
    if version not in VERSIONS:
        raise BadWeights(f"its version is {version:,}, ringkv reads {' and '.join(map(str, VERSIONS))}")
    tensors, fields = file.count("tensors"), file.count("fields")
    metadata: dict[str, Any] = {}
    for _ in range(fields):
        key = file.name("a field's key")
        if key in metadata:
            raise BadWeights(f"field {shown_names([key])} is there twice")
        metadata[key] = _value(file, file.number("I", "a field's type"), f"field {shown_names([key])}")
    declared = [_declared(file) for _ in range(tensors)]
    places = _placed(declared, _alignment(metadata), file.position, file.position + file.left)
    return Header(metadata, {place.name: place for place in places})


def _value(file: _Bounded, type: int, what: str) -> Any:
    if type == TEXT:
        return file.text(what)
    return _array(file, what) if type == ARRAY else _numbers(file, type, 1, what)[0]


def _array(file: _Bounded, what: str) -> list[Any]:
    type, length = file.number("I", what), file.number("Q", what)
    if length > file.values_left:
        raise BadWeights(f"{what} has {length:,} values, ringkv reads up to {MOST_VALUES:,} of a file")
    file.values_left -= length
    return [file.text(what) for _ in range(length)] if type == TEXT else _numbers(file, type, length, what)


def _numbers(file: _Bounded, type: int, count: int, what: str) -> list[Any]:
    if type not in NUMBERS:
        raise BadWeights(f"{what} has values of type {type}, which GGUF does not have here")
    number = struct.Struct(f"<{NUMBERS[type]}")
    # A tuple of all values is twice as large.
    return [value for (value,) in number.iter_unpack(file.take(count * number.size, what))]


def _declared(file: _Bounded) -> TensorPlace:
    """Read what the header says about a tensor, whose start it counts from the end of the header."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    name = file.name("a tensor's name")
    what = f"tensor {shown_names([name])}"
    if not 1 <= (dimensions := file.number("I", what)) <= MOST_DIMENSIONS:
        raise BadWeights(f"{what} has {dimensions:,} dimensions, 1 to {MOST_DIMENSIONS} are possible")
    sizes = tuple(file.number("Q", what) for _ in range(dimensions))
    number, offset = file.number("I", what), file.number("Q", what)
    types = {int(type): type for type in GGMLQuantizationType}
    if number not in types:
        raise UnsupportedModel(
            f"has {what} of type {number}, which the installed package `gguf` does not know; "
            "fetch another quantisation, such as Q8_0 or Q4_K_M"
        )
    block, block_bytes = GGML_QUANT_SIZES[types[number]]
    elements, shape = math.prod(sizes), sizes[::-1]
    if not elements or sizes[0] % block:
        raise BadWeights(f"{what} has shape {shown(list(shape))}, rows of whole blocks are needed")
    return TensorPlace(name, types[number], shape, offset, elements // block * block_bytes)


def _alignment(metadata: Mapping[str, Any]) -> int:
    value = metadata.get("general.alignment", 32)
    if type(value) is not int or value < 1 or value & (value - 1):
        raise BadWeights(f"general.alignment is {shown(value)}, a power of two is needed")
    return value


def _placed(declared: list[TensorPlace], alignment: int, header: int, size: int) -> list[TensorPlace]:
    """Return the tensors with their places in the file. header, size: bytes of the header and of the file."""
    first = -(-header // alignment) * alignment
    places = [replace(tensor, start=first + tensor.start) for tensor in declared]
    for place in places:
        if place.start + place.bytes > size:
            what = f"tensor {shown_names([place.name])}"
            raise BadWeights(f"{what} has {place.bytes:,} bytes from {place.start:,} on")
    if len({place.name for place in places}) < len(places):
        raise BadWeights("two tensors have one name")
    for place, following in pairwise(sorted(places, key=lambda place: place.start)):
        if place.start + place.bytes > following.start:
            raise BadWeights(f"tensors {shown_names([place.name, following.name])} overlap")
    return places
