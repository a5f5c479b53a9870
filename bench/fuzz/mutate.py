"""Mutations of texts, bytes and JSON values, and a tokenizer of bytes, so that no model is needed."""

from collections.abc import Sequence
from random import Random
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from ringkv.text.pieces import byte_alphabet
from ringkv.text.tokenizer import Tokenizer

CONTROL = ("<|im_start|>", "<|im_end|>")
VOCAB = 258
END = 257

WRONG: Sequence[Any] = (
    None, True, -1, 0, 2**31, 2**63, 10**30, 1e308, "", "\ud800", "\0", [], {}, [[]], {"": ""}, "x" * 10_000,
)  # fmt: skip
STRANGE = ("\0", "\ud800", "\U000f0000", "{{", "}}", "{%", '"', "\\", "<|im_end|>", "()", "{1,99999}", "é", " " * 50)


def mutated_text(random: Random, text: str) -> str:
    """Return the text after one to four cuts, repetitions and insertions."""
    for _ in range(random.randint(1, 4)):
        start, end = sorted((random.randint(0, len(text)), random.randint(0, len(text))))
        part = random.choice(
            ("", text[start:end] * random.choice((2, 10, 300)), random.choice(STRANGE), text[start:end][::-1])
        )
        text = (text[:start] + part + text[end:])[:500_000]
    return text


def mutated_json(random: Random, value: Any) -> Any:
    """Return a copy of a JSON value in which one place has another value, or is nested deeply."""
    if random.random() < 0.2 or not isinstance(value, dict | list) or not value:
        return random.choice((*WRONG, nested(random, value)))
    if isinstance(value, list):
        place = random.randrange(len(value))
        changed = [*value[:place], mutated_json(random, value[place]), *value[place + 1 :]]
        return random.choice((changed, changed, value * 3, value[:place]))
    key = random.choice(list(value))
    if random.random() < 0.8:
        return {**value, key: mutated_json(random, value[key])}
    return {name: kept for name, kept in value.items() if name != key}


def cut(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data))]


def flipped(random: Random, data: bytes, *ends: int) -> bytes:
    """Return the bytes with one to five of them changed, each before one of these ends or anywhere."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 5)):
        changed[random.randrange(min(len(changed), random.choice((*ends, len(changed)))))] = random.randrange(256)
    return bytes(changed)


def deep(random: Random, _: bytes) -> bytes:
    """Return JSON that is nested deeply."""
    depth = random.choice((100, 2000, 100_000))
    opening, end = random.choice(((b"", b""), (b'{"a": ', b"}")))
    return opening + b"[" * depth + b"]" * depth + end


def nested(random: Random, value: Any) -> Any:
    for _ in range(random.choice((1, 100, 300))):
        value = [value] if random.random() < 0.5 else {"a": value}
    return value


def inner() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE(vocab=byte_alphabet(), merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True) for name in CONTROL])
    return made


def bytewise() -> Tokenizer:
    return Tokenizer(inner(), "bytes", None, (END,))
