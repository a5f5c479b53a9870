"""Hostile GGUF headers: each is refused immediately, in one sentence, with what is wrong."""

import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.weights.gguf.config import config_json
from ringkv.weights.gguf.file import GGUF
from ringkv.weights.gguf.header import is_utf8, read_header
from tests.residency.conftest import TOKENIZER
from tests.weights.tiny_gguf import tiny_model, write_tiny

U8, U32, TEXT, ARRAY, U64 = 0, 4, 8, 9, 10
F32, Q8_0 = 0, 8


def text(value: str | bytes) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(value)) + value


def field(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, sizes: tuple[int, ...], kind: int = F32, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def array(kind: int, length: int, values: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, length) + values


def gguf(fields: tuple[bytes, ...] = (), tensors: tuple[bytes, ...] = (), data: int = 256, version: int = 3) -> bytes:
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(fields)) + b"".join((*fields, *tensors))
    return header + bytes(-len(header) % 32 + data)


HOSTILE: dict[str, tuple[bytes, str]] = {
    "version": (gguf(version=1), "its version is 1, ringkv reads 2 and 3"),
    "text beyond the file": (
        gguf((field("k", TEXT, struct.pack("<Q", 2**24)),)),
        r"field k needs 16,777,216 bytes, \d+ are left",
    ),
    "text of 2^63 bytes": (
        gguf((field("k", TEXT, struct.pack("<Q", 2**63)),)),
        "field k has 9,223,372,036,854,775,808",
    ),
    "key beyond the file": (gguf((struct.pack("<Q", 60_000),)), "key needs 60,000 bytes"),
    "array of 2^60 bytes": (
        gguf((field("k", ARRAY, array(U8, 2**60)),)),
        "field k has 1,152,921,504,606,846,976 values",
    ),
    "array beyond the file": (gguf((field("k", ARRAY, array(U64, 2**20)),)), "field k needs 8,388,608 bytes"),
    "texts beyond the file": (gguf((field("k", ARRAY, array(TEXT, 2**20)),)), "field k needs 8 bytes, 7 are left"),
    "nested arrays": (
        gguf((field("k", ARRAY, array(ARRAY, 1, array(ARRAY, 1) * 5000)),)),
        "field k has values of type 9",
    ),
    "type of a field": (gguf((field("k", 99, b""),)), "field k has values of type 99"),
    "field twice": (gguf((field("k", U8, b"1"), field("k", U8, b"1"))), "field k is there twice"),
    "broken key": (gguf((text(b"\xff") + bytes(4),)), "key is not valid UTF-8"),
    "broken name": (gguf(tensors=(text(b"\xff") + bytes(24),)), "a tensor's name is not valid UTF-8"),
    "alignment 0": (gguf((field("general.alignment", U32, bytes(4)),)), "general.alignment is 0, a power of two"),
    "alignment text": (gguf((field("general.alignment", TEXT, text("x")),)), "general.alignment is 'x', a power"),
    "dimensions": (gguf(tensors=(text("t") + struct.pack("<I", 2**31),)), "tensor t has 2,147,483,648 dimensions"),
    "no dimensions": (gguf(tensors=(tensor("t", ()),)), "tensor t has 0 dimensions"),
    "size 0": (gguf(tensors=(tensor("t", (0, 4)),)), r"tensor t has shape \[4, 0\]"),
    "overflow": (gguf(tensors=(tensor("t", (2**62, 4)),)), "tensor t has 73,786,976,294,838,206,464 bytes"),
    "overflow to nothing": (gguf(tensors=(tensor("t", (2**32, 2**32)),)), "tensor t has 73,786,976,294,838,206,464"),
    "outside": (gguf(tensors=(tensor("t", (8,), offset=2**63),)), r"tensor t has 32 bytes from 9,223,372,036,854"),
    "after the end": (gguf(tensors=(tensor("t", (65,)),)), "tensor t has 260 bytes from"),
    "part of a block": (gguf(tensors=(tensor("t", (33,), Q8_0),)), r"tensor t has shape \[33\], rows of whole blocks"),
    "tensor twice": (gguf(tensors=(tensor("t", (8,)), tensor("t", (8,), offset=32))), "two tensors have one name"),
    "overlap": (gguf(tensors=(tensor("a", (9,)), tensor("b", (8,), offset=32))), "tensors a, b overlap"),
    "strange name": (gguf(tensors=(tensor("a\n\x1b[0m", (0,)),)), r"tensor 'a\\n\\x1b\[0m' has shape"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    content, named = HOSTILE[name]
    (tmp_path / "x.gguf").write_bytes(content)
    began = time.perf_counter()
    with pytest.raises(BadWeights, match=rf"x\.gguf .*{named}") as refused:
        read_header(tmp_path / "x.gguf")
    assert str(refused.value).isprintable()
    assert str(refused.value).endswith("fetch it again")
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize("kind", [31, 36, 4_000])  # 31 was Q4_0_4_4
def test_a_type_of_tensors_that_is_not_known_asks_for_another_quantisation(kind: int, tmp_path: Path) -> None:
    assert kind not in list(Type)
    (tmp_path / "x.gguf").write_bytes(gguf(tensors=(tensor("t", (32,), kind),)))
    with pytest.raises(UnsupportedModel, match=rf"x\.gguf .* t of type {kind}"):
        read_header(tmp_path / "x.gguf")


LATIN = ["José".encode("latin-1"), b"\xed\xa0\x80", b"\xff", b"a\xf0\x9f\x98"]  # a surrogate, too, is no UTF-8


@pytest.mark.parametrize("value", LATIN)
def test_a_text_that_is_not_utf8_is_marked_and_the_rest_is_read(value: bytes, tmp_path: Path) -> None:
    texts = array(TEXT, 2, text("é") + text(value))
    fields = (field("general.author", TEXT, text(value)), field("k", ARRAY, texts), field("n", TEXT, text("日本😀")))
    (tmp_path / "x.gguf").write_bytes(gguf(fields))
    metadata = read_header(tmp_path / "x.gguf").metadata
    assert (metadata["n"], metadata["k"][0]) == ("日本😀", "é")
    assert [is_utf8([one]) for one in (metadata["general.author"], *metadata["k"], metadata["n"])] == [
        False,
        True,
        False,
        True,
    ]


def test_an_architecture_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(gguf((field("general.architecture", TEXT, text(b"llama\xff")),)))
    with pytest.raises(BadWeights, match=r"'llama\\udcff'"):
        config_json(GGUF(tmp_path / "x.gguf"))


def test_a_file_of_the_other_byte_order_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(gguf(version=3 << 24))
    with pytest.raises(UnsupportedModel, match="other byte order"):
        read_header(tmp_path / "x.gguf")


@pytest.mark.parametrize(
    "fields",
    [(field("k", ARRAY, array(U8, 2**22, bytes(2**22))),), (field("k", ARRAY, array(TEXT, 2**17, bytes(2**20))),)],
    ids=["numbers", "texts"],
)
def test_reading_takes_little_more_memory_than_the_file_has_bytes(fields: tuple[bytes, ...], tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(content := gguf(fields))
    tracemalloc.start()
    read_header(tmp_path / "x.gguf")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 * len(content)  # a list has 8 bytes per element


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.Q8_0, Type.Q4_0])
def test_a_whole_file_reads_as_with_the_gguf_packages_reader(kind: Type, tmp_path: Path) -> None:
    metadata: dict[str, Any] = {**TOKENIZER, "some.flag": True, "some.floats": [1.5, 2.5], "some.none": None}
    path = write_tiny(tmp_path / "x.gguf", tiny_model("Llama", vocab_size=258), kind, metadata)
    ours, theirs = read_header(path), GGUFReader(path)
    fields = {key: one.contents() for key, one in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == fields
    assert {one.name: (one.tensor_type, one.data_offset, one.n_bytes) for one in theirs.tensors} == {
        name: (place.type, place.start, place.bytes) for name, place in ours.tensors.items()
    }
    assert {one.name: tuple(reversed(one.shape.tolist())) for one in theirs.tensors} == {
        name: one.shape for name, one in ours.tensors.items()
    }
