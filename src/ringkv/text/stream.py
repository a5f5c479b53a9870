"""TextStream: one request's tokens to the text its reader sees."""

from collections.abc import Sequence

from ringkv.text.detokenizer import Detokenizer
from ringkv.text.stop import StopStrings


class TextStream:
    """A detokenizer followed by stop strings, which are not looked for in the first `min_tokens` tokens.

    stopped: the stop string met, None before. length: characters the tokens so far stand for, shown or held back.
    """

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)
        self._exempt = min_tokens  # tokens that are still to come before stop strings count
        self.length = 0

    @property
    def stopped(self) -> str | None:
        return self._stops.stopped

    def push(self, token: int) -> str:
        """Return the text that may be shown now that `token` came."""
        text = self._detokenizer.push(token)
        if self._exempt == 0:
            return self._show(text)
        self._exempt -= 1
        self.length += len(text)
        return self._stops.skip(text)

    def finish(self) -> str:
        """Return the rest; nothing when a stop string ended the text."""
        return self._show(self._detokenizer.finish()) + self._stops.finish()

    def _show(self, text: str) -> str:
        self.length += len(text)
        return self._stops.push(text)
