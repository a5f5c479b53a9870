"""Transcript: one answer's tokens as text that is safe to send."""

from collections.abc import Sequence

from ringkv.text.detokenizer import Detokenizer
from ringkv.text.stop import StopStrings


class Transcript:
    """Text comes late where it must: half a code point, or the start of what may become a stop string.

    length: characters that the tokens so far stand for, sent or held back.
    """

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)
        self.length = 0

    @property
    def stopped(self) -> bool:
        """True once a stop string was met; what was sent before it is all there is."""
        return self._stops.stopped is not None

    def push(self, token: int) -> str:
        """The text that may be sent now that `token` came."""
        return self._send(self._detokenizer.push(token))

    def finish(self) -> str:
        """The rest, when no more tokens come."""
        return self._send(self._detokenizer.finish()) + self._stops.finish()

    def _send(self, text: str) -> str:
        self.length += len(text)
        return self._stops.push(text)
