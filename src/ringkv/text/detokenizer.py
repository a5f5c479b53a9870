"""Detokenizer: tokens to text, as they come."""

import codecs

from ringkv.text.pieces import Pieces


class Detokenizer:
    """Turns one sequence of tokens to text; what it returns, joined, is the text of the whole sequence.

    It never returns half a code point, holds back three bytes at most, and a token costs the length of its piece.
    With `continues` the sequence goes on from a text before it, so a space at its start is kept.
    """

    def __init__(self, pieces: Pieces, skip_special_tokens: bool = True, continues: bool = False) -> None:
        self._pieces = pieces
        self._skipped: frozenset[int] = pieces.special_ids if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")(pieces.errors)
        self._strip = 0 if continues else pieces.strip

    def push(self, token: int) -> str:
        """Return the text that `token` completes, often its own, sometimes none."""
        return "" if token in self._skipped else self._stripped(self._utf8.decode(self._pieces[token]))

    def finish(self) -> str:
        """Return what is still held: replacement characters for a code point that never came whole."""
        return self._stripped(self._utf8.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        """Drop the spaces due at the start of the whole text, and no others."""
        while self._strip and text:
            self._strip = self._strip - 1 if text[0] == " " else 0
            text = text.removeprefix(" ") if text[0] == " " else text
        return text
