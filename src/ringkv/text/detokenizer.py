"""Detokenizer: tokens to text, incrementally."""

import codecs

from ringkv.text.pieces import TokenPieces


class Detokenizer:
    """Converts one sequence of tokens to text; the returned parts, joined, are the text of the whole sequence.

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
        while self._strip and text:
            self._strip = self._strip - 1 if text[0] == " " else 0
            text = text.removeprefix(" ") if text[0] == " " else text
        return text
