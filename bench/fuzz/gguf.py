"""GGUF: headers with wrong lengths, types, values and places, and flipped and missing bytes.

The file is written from its parts without any check, so that each part may be wrong.
"""

import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from bench.fuzz.mutate import CONTROL, cut, flipped, inner
from bench.fuzz.target import Target
from bench.fuzz.tiny_models import CONFIG, in_folder, serve

U32, I32, F32, BOOL, TEXT, ARRAY = 4, 5, 6, 7, 8, 9
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", 10: "Q", 11: "q", 12: "d"}
COUNTS: Sequence[int] = (0, 1, 2, 31, 2**16, 2**31, 2**32 - 1, 2**40, 2**60, 2**63, 2**64 - 1)
FLOATS = (0.0, -1.0, 1e-45, 1e38, float("inf"), float("nan"))
BLOCKS = {"F32": (0, 1, 4), "Q8_0": (8, 32, 34), "Q4_0": (2, 32, 18)}  # type, elements and bytes of a block
HIDDEN, VOCAB, WIDE, KEYS = 32, 258, 64, 16


@dataclass(frozen=True)
class Field:
    """length: what is written as the length of a text or an array, if not the true one."""

    key: bytes
    kind: int
    value: Any
    items: int = TEXT  # type of an array's elements
    length: int | None = None

    def encoded(self) -> bytes:
        return _text(self.key) + struct.pack("<I", self.kind) + self._value()

    def _value(self) -> bytes:
        if self.kind == TEXT:
            return _text(self.value, self.length)
        if self.kind != ARRAY:
            return _number(self.kind, self.value)
        items = b"".join(_text(item) if self.items == TEXT else _number(self.items, item) for item in self.value)
        length = len(self.value) if self.length is None else self.length
        return struct.pack("<IQ", self.items, length) + items


@dataclass(frozen=True)
class Place:
    name: bytes
    sizes: tuple[int, ...]
    kind: int
    offset: int
    dimensions: int | None = None

    def encoded(self) -> bytes:
        dimensions = len(self.sizes) if self.dimensions is None else self.dimensions
        sizes = b"".join(struct.pack("<Q", size) for size in self.sizes)
        return _text(self.name) + struct.pack("<I", dimensions) + sizes + struct.pack("<IQ", self.kind, self.offset)


@dataclass(frozen=True)
class File:
    fields: tuple[Field, ...]
    places: tuple[Place, ...]
    body: bytes
    version: int = 3
    counts: tuple[int, int] | None = None

    def encoded(self) -> bytes:
        tensors, fields = self.counts or (len(self.places), len(self.fields))
        header = b"GGUF" + struct.pack("<IQQ", self.version, tensors, fields)
        header += b"".join(part.encoded() for part in (*self.fields, *self.places))
        return header + bytes(-len(header) % 32) + self.body


def _text(value: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(value) if length is None else length) + value


def _number(kind: int, value: Any) -> bytes:
    try:
        return struct.pack(f"<{FORMATS[kind]}", value)
    except (struct.error, KeyError, OverflowError):
        return bytes(4)


@cache
def _file() -> File:
    """Return an ordinary file."""
    fields = [
        *(Field(f"llama.{key}".encode(), U32, value) for key, value in _SIZES.items()),
        Field(b"general.architecture", TEXT, b"llama"),
        Field(b"llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        Field(b"llama.rope.freq_base", F32, 1e4),
        *_vocabulary(),
    ]
    body, places = b"", []
    for name, shape, kind in _tensors():
        number, block, size = BLOCKS[kind]
        rows, columns = (1, *shape)[-2:]
        places.append(Place(name.encode(), tuple(reversed(shape)), number, len(body)))
        body += (b"\0\x3c" + bytes(size - 2)) * (rows * columns // block)
        body += bytes(-len(body) % 32)
    return File(tuple(fields), tuple(places), body)


_SIZES = {
    "context_length": CONFIG["max_position_embeddings"], "embedding_length": HIDDEN, "block_count": 2,
    "feed_forward_length": WIDE, "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 8,
    "attention.value_length": 8,
}  # fmt: skip


def _vocabulary() -> list[Field]:
    vocab = json.loads(inner().to_str())["model"]["vocab"]
    tokens = [name.encode() for name, _ in sorted(vocab.items(), key=lambda item: item[1])]
    tokens += [name.encode() for name in CONTROL]
    types = [3 if token.decode() in CONTROL else 1 for token in tokens]
    prefix = b"tokenizer.ggml."
    return [
        Field(prefix + b"model", TEXT, b"gpt2"),
        Field(prefix + b"pre", TEXT, b"gpt-2"),
        Field(prefix + b"tokens", ARRAY, tokens),
        Field(prefix + b"token_type", ARRAY, types, I32),
        Field(prefix + b"merges", ARRAY, []),
        Field(prefix + b"scores", ARRAY, [0.0] * len(tokens), F32),
        Field(prefix + b"eos_token_id", U32, 257),
        Field(prefix + b"bos_token_id", U32, 256),
        Field(prefix + b"add_bos_token", BOOL, True),
        Field(b"tokenizer.chat_template", TEXT, b"{{ messages }}"),
    ]


def _tensors() -> list[tuple[str, tuple[int, ...], str]]:
    shapes = {
        "attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,), "attn_q": (HIDDEN, HIDDEN), "attn_k": (KEYS, HIDDEN),
        "attn_v": (KEYS, HIDDEN), "attn_output": (HIDDEN, HIDDEN), "ffn_gate": (WIDE, HIDDEN),
        "ffn_up": (WIDE, HIDDEN), "ffn_down": (HIDDEN, WIDE),
    }  # fmt: skip
    kinds = {"attn_norm": "F32", "ffn_norm": "F32", "ffn_down": "Q4_0", "attn_q": "Q4_0"}
    layers = [
        (f"blk.{layer}.{name}.weight", shape, kinds.get(name, "Q8_0"))
        for layer in range(2)
        for name, shape in shapes.items()
    ]
    top = [("token_embd.weight", (VOCAB, HIDDEN), "Q8_0"), ("output_norm.weight", (HIDDEN,), "F32")]
    return [*top, ("output.weight", (VOCAB, HIDDEN), "Q8_0"), *layers]


def _make(random: Random) -> bytes:
    file = _file()
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        file = random.choice((_field, _field, _place, _place, _counts))(random, file)
    data = file.encoded()
    if random.random() < 0.7:
        return data
    return random.choice((cut(random, data), flipped(random, data, 24, 1000), data + bytes(random.randrange(100))))


def _field(random: Random, file: File) -> File:
    index = random.randrange(len(file.fields))
    changed = random.choice((_retyped, _revalued, _revalued, _lengthened, _renamed))(random, file.fields[index])
    return replace(file, fields=_replaced(random, file.fields, index, changed))


def _replaced(random: Random, parts: tuple[Any, ...], index: int, changed: Any) -> tuple[Any, ...]:
    """Return the parts with one of them changed, without it, or with both."""
    others = (*parts[:index], *parts[index + 1 :])
    return random.choice(((*others, changed), (*others, changed), others, (*parts, changed)))


def _retyped(random: Random, field: Field) -> Field:
    kind, items = random.choice((*FORMATS, TEXT, ARRAY, 13, 2**31)), random.choice((*FORMATS, TEXT, ARRAY, 99))
    value: Any = {TEXT: b"text", ARRAY: [b"a"] if items == TEXT else [1]}.get(kind, random.choice((*COUNTS, *FLOATS)))
    return replace(field, kind=kind, items=items, value=value)


def _revalued(random: Random, field: Field) -> Field:
    if field.kind == TEXT:
        value: Any = random.choice((b"", b"qwen2", b"llama", b"\xff", b"x" * 100_000, b"{% for %}", "é\n".encode()))
    elif field.kind == ARRAY:
        part = field.value[: random.randrange(len(field.value) + 1)]
        strange = b"\xff\xfe" if field.items == TEXT else random.choice((-1, 2**31 - 1, 9))
        value = random.choice((part, [*part, strange], field.value[::-1], field.value * 3, [*part, *part[:1]]))
        if field.items == TEXT and random.random() < 0.2:
            value = [b"q" * random.choice((5000, 60_000)), *value[1:]]
    else:
        value = random.choice(FLOATS if field.kind == F32 else (0, 1, 2, 3, 5, 7, 2**16, 2**31, 2**32 - 1))
    return replace(field, value=value)


def _lengthened(random: Random, field: Field) -> Field:
    return replace(field, length=random.choice(COUNTS)) if field.kind in (TEXT, ARRAY) else _revalued(random, field)


def _renamed(random: Random, field: Field) -> Field:
    key = random.choice((b"", b"\xff", b"x" * 70_000, b"general.alignment", b"split.count", *EXTRA))
    return replace(field, key=key)


EXTRA = tuple(
    f"llama.{name}".encode()
    for name in (
        "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "expert_count",
        "attention.sliding_window", "rope.dimension_count", "rope.scaling.attn_factor", "rope.scale_linear",
        "attention.sliding_window_pattern", "nextn_predict_layers", "expert_gating_func", "expert_group_count",
    )
)  # fmt: skip


def _place(random: Random, file: File) -> File:
    index = random.randrange(len(file.places))
    old, numbers = file.places[index], (*COUNTS, 32, 64)
    changed = random.choice(
        (
            replace(old, name=random.choice((b"", b"\xff", b"a\nb", b"rope_freqs.weight", file.places[0].name))),
            replace(old, sizes=tuple(random.choice((*numbers, size)) for size in old.sizes)),
            replace(old, sizes=random.choice((old.sizes[::-1], old.sizes[:-1], (*old.sizes, 1), old.sizes * 3))),
            replace(old, dimensions=random.choice(COUNTS) % 2**32),
            replace(old, kind=random.choice((*range(42), 2**31))),
            replace(old, offset=random.choice((*COUNTS, old.offset + 1, file.places[0].offset, len(file.body) - 1))),
        )
    )
    return replace(file, places=_replaced(random, file.places, index, changed))


def _counts(random: Random, file: File) -> File:
    if random.random() < 0.3:
        return replace(file, version=random.choice((0, 1, 2, 4, 3 << 24, 2**32 - 1)))
    near = (len(file.places) + random.randint(-2, 2), len(file.fields) + random.randint(-2, 2))
    counts = random.choice((near, (random.choice(COUNTS), near[1]), (near[0], random.choice(COUNTS))))
    return replace(file, counts=counts)


def _run(data: bytes) -> None:
    """Convert the file as `ringkv serve` does, into a cache of its own, and load the result."""

    def convert_and_serve(folder: Path) -> None:
        os.environ["RINGKV_CACHE"] = str(folder / "cache")
        serve(folder / "x.gguf")

    in_folder({"x.gguf": data}, convert_and_serve)


def _prepare() -> None:
    """Load what each case would import, and check that the ordinary file is one."""
    _run(_file().encoded())


GGUF_FILES = Target("GGUF files, converted and loaded", _make, _run, _prepare)
