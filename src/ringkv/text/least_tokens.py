"""LeastTokens: how many tokens a text has at least, found without tokenising it.

A token stands for no more of a text than its entry in the vocabulary has: bytes if the vocabulary is of bytes, else
characters. So a text of n has at least n / L tokens, if the longest entry has L. The longest entries are runs of
spaces. Those with a letter or digit are shorter, which gives letters and digits more weight:

    tokens >= words / W + others / L        W: length of the longest entry with an ASCII letter or digit

A token with w such characters and r others adds w / W + r / L to the right side, at most 1.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from string import ascii_letters, digits
from typing import Any

import tokenizers
from tokenizers import models

from ringkv.text.pieces import byte_alphabet

WORD = frozenset(ascii_letters + digits)
SHRUNK = 4  # bytes or characters that SHRINKING turns into one, at most: U+1D400 has 4 bytes, and NFKC makes it "A"
SHRINKING = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")  # normalisers that leave ASCII as long as it is
GROWING = ("Prepend", "ByteLevel")
KEEPING = ("ByteLevel", "Digits", "Metaspace", "UnicodeScripts")  # pre-tokenisers that drop nothing
SPELLING = (models.BPE, models.Unigram)  # models that never put a whole unknown word into one token
FALLBACK = tuple(f"<0x{byte:02X}>" for byte in range(256))


@dataclass(frozen=True)
class LeastTokens:
    """longest: length of the longest entry. word: of the longest with an ASCII letter or digit.

    of_bytes: they are bytes, else characters. dropped: bytes that the vocabulary does not have, which make no token.
    shrunk: how many may become one before a text is tokenised, unless it is ASCII.
    """

    longest: int
    word: int
    of_bytes: bool
    dropped: bytes = b""
    shrunk: int = 1

    @classmethod
    def of(cls, inner: tokenizers.Tokenizer) -> "LeastTokens | None":
        """None for a tokenizer that may drop characters, or gather any number of them in one token."""
        normalisers, splitters = list(_steps(inner.normalizer)), list(_steps(inner.pre_tokenizer))
        of_bytes = any(step["type"] == "ByteLevel" for step in (*normalisers, *splitters))
        shrinks = any(step["type"] in SHRINKING for step in normalisers)
        dropped = bytes(byte for char, byte in byte_alphabet().items() if inner.token_to_id(char) is None)
        added = inner.get_added_tokens_decoder().values()
        is_known = (
            isinstance(inner.model, SPELLING)
            and all(map(_keeps_length, normalisers))
            and all(map(_keeps_all, splitters))
            and not any(token.lstrip or token.rstrip for token in added)
            and (not (shrinks and dropped) if of_bytes else _falls_back(inner))
        )
        if not is_known:
            return None
        lengths = {entry: len(entry) for entry in inner.get_vocab(with_added_tokens=True)}
        lengths |= {token.content: len(token.content.encode()) for token in added}
        return cls(
            longest=max(lengths.values()),
            word=max((size for entry, size in lengths.items() if not WORD.isdisjoint(entry)), default=1),
            of_bytes=of_bytes,
            dropped=dropped if of_bytes else b"",
            shrunk=SHRUNK if shrinks else 1,
        )

    def __call__(self, text: str) -> int:
        written = text.encode(errors="replace").translate(None, self.dropped)
        size = len(written) if self.of_bytes else len(text)
        if self.shrunk > 1 and not text.isascii():
            return -(-size // (self.shrunk * self.longest))
        words = len(written) - len(written.translate(None, "".join(WORD).encode()))
        return -(-(words * self.longest + (size - words) * self.word) // (self.word * self.longest))


def _keeps_length(normaliser: dict[str, Any]) -> bool:
    """Whether a text is as long or longer after it, except for what `shrunk` accounts for."""
    if normaliser["type"] == "Replace":
        replaced = normaliser["pattern"].get("String")  # else a regular expression, of any length
        return replaced is not None and WORD.isdisjoint(replaced) and _is_as_long(normaliser["content"], replaced)
    return normaliser["type"] in (*GROWING, *SHRINKING)


def _is_as_long(text: str, other: str) -> bool:
    """Whether it has as many characters, and as many bytes: entries are counted in either."""
    return len(text) >= len(other) and len(text.encode()) >= len(other.encode())


def _keeps_all(splitter: dict[str, Any]) -> bool:
    """Whether each character is part of a piece after it."""
    if splitter["type"] in ("Split", "Punctuation"):
        return bool(splitter["behavior"] != "Removed")
    return splitter["type"] in KEEPING


def _falls_back(inner: tokenizers.Tokenizer) -> bool:
    """Whether a character without an entry becomes bytes, each an entry."""
    falls_back = bool(getattr(inner.model, "byte_fallback", False))
    return falls_back and all(inner.token_to_id(byte) is not None for byte in FALLBACK)


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """The steps of a normaliser or pre-tokeniser, sequences flattened."""
    if part is not None:
        yield from _flat(json.loads(part.__getstate__()))


def _flat(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if step["type"] != "Sequence":
        yield step
    for inner in (*step.get("normalizers", ()), *step.get("pretokenizers", ())):
        yield from _flat(inner)
