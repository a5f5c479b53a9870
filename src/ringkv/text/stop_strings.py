"""StopStrings: the strings that end a text, searched while the text arrives."""

from collections.abc import Sequence

from ringkv.base.errors import InvalidRequest


class StopStrings:
    """Searches for stop strings in a text that arrives in parts.

    The text ends before the stop string that is complete first; if several end there, before the longest. The result
    does not depend on how the text is split into parts. stopped: the stop string that was found, else None.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise InvalidRequest("a stop string is empty, which would end every text at once; leave it out", "stop")
        self.stopped: str | None = None
        self._stops = tuple(stops)
        self._held = ""

    def skip(self, text: str) -> str:
        """Return the held text and `text`, without searching `text`."""
        return self.finish() + text

    def push(self, text: str) -> str:
        """Return the text that can no longer be part of a stop string; empty after a stop."""
        if not self._stops:
            return text
        if self.stopped is not None:
            return ""
        text, self._held = self._held + text, ""
        ends = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if ends:
            _, start, self.stopped = min(ends)
            return text[:start]
        cut = len(text) - pending(text, self._stops)
        self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """Return the held text at the end of the input."""
        held, self._held = self._held, ""
        return held


def pending(text: str, words: Sequence[str]) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of one of `words`."""
    longest = min(len(text), max(map(len, words), default=1) - 1)
    ends = (text[len(text) - n :] for n in range(longest, 0, -1))
    return next((len(end) for end in ends if any(word.startswith(end) for word in words)), 0)
