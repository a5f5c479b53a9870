"""TokenLowerBound: a lower bound on the number of tokens of a text, computed without tokenising it.

A token covers at most as many bytes of a text as its vocabulary entry has (characters, unless the vocabulary is of
bytes). So a text of n bytes has at least n / L tokens if the longest entry has L bytes. The longest entries are runs
of spaces. Entries with a letter or digit are shorter, so letters and digits have more weight:

    tokens >= words / W + others / L        W: length of the longest entry with an ASCII letter or digit

A token with w such characters and r others adds w / W + r / L to the right side, at most 1.
"""

from dataclasses import dataclass
from string import ascii_letters, digits
from typing import Any

import tokenizers
from tokenizers import models

from ringkv.text.pieces import byte_alphabet, steps_of

WORD = frozenset(ascii_letters + digits)
MAX_SHRINK = 4  # bytes or characters that SHRINKING makes one, at most: U+1D400 has 4 bytes and NFKC makes it "A"
SHRINKING = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")  # normalisers that do not change the length of ASCII
GROWING = ("Prepend", "ByteLevel")
LOSSLESS = ("ByteLevel", "Digits", "Metaspace", "UnicodeScripts")  # pre-tokenisers that drop nothing
MODELS = (models.BPE, models.Unigram)  # models that do not turn a whole unknown word into one token
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))


@dataclass(frozen=True)
class TokenLowerBound:
    """longest: length of the longest entry. word: length of the longest entry with an ASCII letter or digit.

    of_bytes: lengths are in bytes, else in characters. dropped: bytes without an entry, which become no token.
    shrink: units that normalisation may merge into one, in text that is not ASCII.
    """

    longest: int
    word: int
    of_bytes: bool
    dropped: bytes = b""
    shrink: int = 1

    @classmethod
    def of(cls, inner: tokenizers.Tokenizer) -> "TokenLowerBound | None":
        """Return None for a tokenizer that may drop characters, or merge any number of them into one token."""
        normalisers, splitters = list(steps_of(inner.normalizer)), list(steps_of(inner.pre_tokenizer))
        of_bytes = any(step["type"] == "ByteLevel" for step in (*normalisers, *splitters))
        shrinks = any(step["type"] in SHRINKING for step in normalisers)
        dropped = bytes(byte for char, byte in byte_alphabet().items() if inner.token_to_id(char) is None)
        added = inner.get_added_tokens_decoder().values()
        has_bound = (
            isinstance(inner.model, MODELS)
            and all(map(_never_shortens, normalisers))
            and all(map(_is_lossless, splitters))
            and not any(token.lstrip or token.rstrip for token in added)
            and (not (shrinks and dropped) if of_bytes else _falls_back(inner))
        )
        if not has_bound:
            return None
        lengths = {entry: len(entry) for entry in inner.get_vocab(with_added_tokens=True)}
        lengths |= {token.content: len(token.content.encode()) for token in added}
        return cls(
            longest=max(lengths.values()),
            word=max((size for entry, size in lengths.items() if not WORD.isdisjoint(entry)), default=1),
            of_bytes=of_bytes,
            dropped=dropped if of_bytes else b"",
            shrink=MAX_SHRINK if shrinks else 1,
        )

    def __call__(self, text: str) -> int:
        encoded = text.encode(errors="replace").translate(None, self.dropped)
        size = len(encoded) if self.of_bytes else len(text)
        if self.shrink > 1 and not text.isascii():
            return -(-size // (self.shrink * self.longest))
        words = len(encoded) - len(encoded.translate(None, "".join(WORD).encode()))
        return -(-(words * self.longest + (size - words) * self.word) // (self.word * self.longest))


def _never_shortens(normaliser: dict[str, Any]) -> bool:
    """Return whether a normaliser never shortens a text, except by `shrink`."""
    if normaliser["type"] != "Replace":
        return normaliser["type"] in (*GROWING, *SHRINKING)
    old, new = normaliser["pattern"].get("String"), normaliser["content"]
    if old is None or not WORD.isdisjoint(old):  # a regular expression matches any length
        return False
    return len(new) >= len(old) and len(new.encode()) >= len(old.encode())


def _is_lossless(splitter: dict[str, Any]) -> bool:
    """Return whether a pre-tokeniser keeps every character."""
    if splitter["type"] in ("Split", "Punctuation"):
        return bool(splitter["behavior"] != "Removed")
    return splitter["type"] in LOSSLESS


def _falls_back(inner: tokenizers.Tokenizer) -> bool:
    """Return whether a character without an entry becomes byte tokens, all of which exist."""
    falls_back = bool(getattr(inner.model, "byte_fallback", False))
    return falls_back and all(inner.token_to_id(byte) is not None for byte in BYTE_TOKENS)
