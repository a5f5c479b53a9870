"""TextStream: one request's tokens to text that may be sent."""

from collections.abc import Sequence

from ringkv.text.pieces import Detokenizer
from ringkv.text.stop import StopStrings


class TextStream:
    """A detokenizer followed by a search for stop strings, which skips the first `min_tokens` tokens.

    stopped: the stop string that was found, else None. length: characters of all tokens so far, sent or held back.
    """

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)
        self._exempt = min_tokens  # tokens left before stop strings are searched for
        self.length = 0

    @property
    def stopped(self) -> str | None:
        return self._stops.stopped

    def push(self, token: int) -> str:
        """Return the text that may be sent after `token`."""
        text = self._detokenizer.push(token)
        if self._exempt == 0:
            return self._show(text)
        self._exempt -= 1
        self.length += len(text)
        return self._stops.skip(text)

    def finish(self) -> str:
        """Return the rest; empty if a stop string ended the text."""
        return self._show(self._detokenizer.finish()) + self._stops.finish()

    def _show(self, text: str) -> str:
        self.length += len(text)
        return self._stops.push(text)
