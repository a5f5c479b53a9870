"""safetensors: headers with wrong places, shapes, types and names, indexes of shards, and flipped and missing bytes.

Half of the files are of quantised models.
"""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from bench.fuzz.mutate import cut, flipped, mutated_json
from bench.fuzz.target import Target
from bench.fuzz.tiny_models import (
    QUANTISERS,
    check_ordinary,
    config_files,
    quantised_files,
    serve_files,
    weight_files,
)
from ringkv.weights.files import GROUPS, INDEX, SINGLE

NUMBERS: Any = (0, 1, -1, 2, 31, 2**31, 2**32, 2**62, 2**63, 2**64 - 1, 10**30, 1.5, "4", None)
DTYPES: Any = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F4", "I64", "U8", "BOOL", "C64", "", "f32", 3, None)
NAMES = ("", "__metadata__", "a\nb", "\0", "\ud800", "x" * 10_000, "model.norm.weight", "é")
SHARDS: Any = (SINGLE, "shard.safetensors", "../x", "", "/", "\0", "x" * 5000, "\ud800", 3, None, "config.json")
Header = dict[str, Any]


def _make(random: Random) -> dict[str, bytes]:
    weights = random.choice((weight_files(), quantised_files(random.choice(list(QUANTISERS)))))
    files = {**config_files(), **weights}
    name = random.choice([name for name in (SINGLE, GROUPS) if name in files])
    files[name] = random.choice((_restructured, _restructured, _resized, _flipped, cut))(random, files[name])
    return {**files, **random.choice((lambda: {}, lambda: {}, lambda: _index(random)))()}


def _parts(data: bytes) -> tuple[Header, bytes]:
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def _joined(header: bytes, body: bytes, length: int | None = None) -> bytes:
    length = len(header) if length is None else length
    return (length % 2**64).to_bytes(8, "little") + header + body


def _restructured(random: Random, data: bytes) -> bytes:
    header, body = _parts(data)
    for _ in range(random.randint(1, 3)):
        header = random.choice(_CHANGES)(random, header)
    text = json.dumps(header)
    if random.random() < 0.1 and len(header) > 1:  # two entries of one name
        first, second = random.sample(sorted(header), 2)
        text = text.replace(json.dumps(first), json.dumps(second))
    return _joined(text.encode(), random.choice((body, body, body, body + bytes(random.randrange(100)), body[:-1])))


def _field(key: str, value: Callable[[Random, Any], Any]) -> Callable[[Random, Header], Header]:
    def change(random: Random, header: Header) -> Header:
        name = random.choice(sorted(header))
        if not isinstance(header[name], dict):
            return header
        return {**header, name: {**header[name], key: value(random, header[name].get(key))}}

    return change


def _numbers(random: Random, value: Any) -> Any:
    """Return a list of numbers with another one in one place, in another order, or of another length."""
    value = value if isinstance(value, list) and value else [0, 0]
    place = random.randrange(len(value))
    near = value[place] + random.choice((-2, -1, 1, 2, 64)) if isinstance(value[place], int) else value[place]
    changed = [*value[:place], random.choice((*NUMBERS, near)), *value[place + 1 :]]
    return random.choice((changed, changed, value[::-1], value * 2, value[:place], value * 100, random.choice(NUMBERS)))


def _renamed(random: Random, header: Header) -> Header:
    old = random.choice(sorted(header))
    return {random.choice((*NAMES, old + ".q")) if name == old else name: value for name, value in header.items()}


def _copied(random: Random, header: Header) -> Header:
    return {**header, random.choice(sorted(header)): header[random.choice(sorted(header))]}


def _emptied(random: Random, header: Header) -> Header:
    left_out = random.choice(sorted(header))
    return {name: value for name, value in header.items() if name != left_out} or {"a": 1}


def _any(random: Random, header: Header) -> Header:
    changed = mutated_json(random, header)
    return changed if isinstance(changed, dict) and changed else {"a": changed}


_CHANGES = (
    _field("shape", _numbers),
    _field("data_offsets", _numbers),
    _field("dtype", lambda random, _: random.choice(DTYPES)),
    _renamed,
    _copied,
    _emptied,
    _any,
)


def _resized(random: Random, data: bytes) -> bytes:
    """Return the file with another length of its header than it has."""
    header, body = _parts(data)
    length = random.choice((0, 1, len(data), 99_999_999, 2**31, 2**40, 2**63, 2**64 - 1, random.randrange(len(data))))
    padding = b" " * random.choice((0, 0, 1_000_000))
    return _joined(json.dumps(header).encode() + padding, body, length)


def _flipped(random: Random, data: bytes) -> bytes:
    return flipped(random, data, 8, 300)


def _index(random: Random) -> dict[str, bytes]:
    """Return an index, right or wrong, of which the file itself is the only shard."""
    names = [name for name in _parts(weight_files()[SINGLE])[0] if name != "__metadata__"]
    index: Any = {"weight_map": dict.fromkeys(names, SINGLE)}
    if random.random() < 0.7:
        index["weight_map"][random.choice((*names, *NAMES))] = random.choice(SHARDS)
    text = json.dumps(random.choice((index, index, mutated_json(random, index)))).encode()
    return {INDEX: random.choice((text, text, text, b'{"weight_map": ' * 100_000, text[: random.randrange(len(text))]))}


def _check() -> None:
    check_ordinary()
    for name in QUANTISERS:
        serve_files({**config_files(), **quantised_files(name)})


SAFETENSORS = Target("safetensors files and their index", _make, serve_files, _check)
