"""TokenPieces: the bytes of each token.

A text can be decoded incrementally because each token maps to bytes on its own. Two families cover the models served
here. In byte-level BPE (GPT-2) each character of a token stands for one byte. In SentencePiece with byte fallback a
token is text with ▁ for a space, or one byte such as <0x0A>.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import tokenizers

from ringkv.base.errors import UnsupportedModel

EACH_BYTE = "ringkv.each_byte"
_LARGEST_ID = 2**32 - 1  # tokenizers keeps ids in 32 bits
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    """Replace each invalid byte with one replacement character, like SentencePiece."""
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error(EACH_BYTE, _replace_each_byte)


@dataclass(frozen=True)
class TokenPieces:
    """The bytes of each token, and how to decode a sequence of them.

    token: id -> the vocabulary's entry, None for an unknown id. spell: entry -> bytes.
    strip: spaces to remove from the start of a text, because SentencePiece adds a space before the first word.
    errors: the codec error handler for invalid UTF-8.
    """

    token: Callable[[int], str | None]
    spell: Callable[[str], bytes]
    special_ids: frozenset[int]
    strip: int = 0
    errors: str = "replace"
    _cache: dict[int, bytes] = field(default_factory=dict, repr=False)
    _texts: dict[int, str | None] = field(default_factory=dict, repr=False)

    def __getitem__(self, id: int) -> bytes:
        """Return the bytes of token `id`; empty for an id outside the vocabulary."""
        if id not in self._cache:
            token = self.token(id) if 0 <= id <= _LARGEST_ID else None
            if token is None:
                return b""
            self._cache[id] = self.spell(token)
        return self._cache[id]

    def text(self, id: int) -> str | None:
        """Return the text of token `id`; None if its bytes are not valid UTF-8 without those of its neighbours."""
        if id not in self._texts:
            try:
                text = self[id].decode()
            except UnicodeDecodeError:
                text = None
            if id not in self._cache:  # outside the vocabulary, so it is not remembered
                return text
            self._texts[id] = text
        return self._texts[id]

    @classmethod
    def of(cls, tokenizer: tokenizers.Tokenizer, name: str) -> "TokenPieces":
        """Build from the tokenizer's decoder. Raises UnsupportedModel for a decoder of neither family."""
        special = frozenset(id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special)
        steps = list(steps_of(tokenizer.decoder))
        types = {step["type"] for step in steps}
        if types == {"ByteLevel"}:
            return cls(tokenizer.id_to_token, spell_byte_level, special)
        if "ByteFallback" in types and types <= {"ByteFallback", "Replace", "Fuse", "Strip"}:
            stripped = sum(step["start"] for step in steps if step["type"] == "Strip" and step["content"] == " ")
            return cls(tokenizer.id_to_token, _speller(steps), special, stripped, EACH_BYTE)
        raise UnsupportedModel(
            f"{name} decodes with {'+'.join(sorted(types)) or 'no decoder'}; "
            "ringkv reads ByteLevel (GPT-2, Llama 3, Qwen) and ByteFallback (SentencePiece) tokenizers"
        )


def byte_alphabet() -> dict[str, int]:
    """Return character -> byte of byte-level BPE: printable Latin-1 is itself, other bytes are from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = byte_alphabet()


def spell_byte_level(token: str) -> bytes:
    """Return the bytes of a byte-level token; an added token outside the alphabet is plain text."""
    if all(char in _BYTE_OF for char in token):
        return bytes(_BYTE_OF[char] for char in token)
    return token.encode("utf-8")


def _speller(steps: list[dict[str, Any]]) -> Callable[[str], bytes]:
    """Return token -> bytes for SentencePiece: <0x0A> is a byte; other tokens get the decoder's replacements."""
    replaced = [(step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"]

    def spell(token: str) -> bytes:
        if byte := _BYTE_TOKEN.fullmatch(token):
            return bytes.fromhex(byte[1])
        for old, new in replaced:
            token = token.replace(old, new)
        return token.encode("utf-8")

    return spell


def steps_of(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a normaliser, pre-tokeniser or decoder, with sequences flattened; none for None."""
    pending = [] if part is None else [json.loads(part.__getstate__())]
    while pending:
        step = pending.pop(0)
        if step["type"] != "Sequence":
            yield step
        pending[:0] = [inner for name in ("normalizers", "pretokenizers", "decoders") for inner in step.get(name, ())]


class Detokenizer:
    """Converts a sequence of tokens to text; the returned parts, joined, are the text of the whole sequence.

    It never returns half a code point and holds back at most three bytes. The cost of a token is linear in its bytes.
    continues: the sequence continues an earlier text, so a space at its start is kept.
    """

    def __init__(self, pieces: TokenPieces, skip_special_tokens: bool = True, continues: bool = False) -> None:
        self._pieces = pieces
        self._skipped: frozenset[int] = pieces.special_ids if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")(pieces.errors)
        self._strip = 0 if continues else pieces.strip
        self._is_between = True  # code points: no byte is held back

    def push(self, token: int) -> str:
        """Return the text that `token` completes; it may be empty."""
        if token in self._skipped:
            return ""
        text = self._pieces.text(token) if self._is_between else None
        if text is None:
            text = self._utf8.decode(self._pieces[token])
            self._is_between = not self._utf8.getstate()[0]
        return self._stripped(text) if self._strip else text

    def finish(self) -> str:
        """Return the rest: replacement characters for an incomplete code point."""
        return self._stripped(self._utf8.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        """Remove up to `_strip` spaces from the start of the whole text."""
        spaces = min(self._strip, len(text) - len(text.lstrip(" ")))
        self._strip = self._strip - spaces if spaces == len(text) else 0
        return text[spaces:]
