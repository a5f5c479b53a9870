"""AnswerStream: one request's tokens to the parts of its answer that may be sent."""

from collections.abc import Iterable, Iterator, Sequence

from ringkv.text.answers.reader import Reader
from ringkv.text.answers.spans import AnswerPart, Content
from ringkv.text.pieces import Detokenizer
from ringkv.text.stop_strings import StopStrings


class AnswerStream:
    """A detokenizer, a reader of the parts, and a search for stop strings in the content.

    A stop string ends the content. Reasoning and tool calls may contain it. The search skips the first `min_tokens`
    tokens. stopped: the stop string that was found, else None. length: characters of all tokens so far, sent or held
    back.
    """

    def __init__(
        self, detokenizer: Detokenizer, stops: Sequence[str] = (), min_tokens: int = 0, reader: Reader | None = None
    ) -> None:
        self._detokenizer, self._reader = detokenizer, reader or Reader()
        self._stops = StopStrings(stops)
        self._exempt = min_tokens  # tokens left before stop strings are searched for
        self.length = 0

    @property
    def stopped(self) -> str | None:
        return self._stops.stopped

    @property
    def is_thinking(self) -> bool:
        """Return whether the next text is reasoning."""
        return self._reader.is_thinking

    def push(self, token: int) -> list[AnswerPart]:
        """Return the parts that may be sent after `token`."""
        text = self._detokenizer.push(token)
        self.length += len(text)
        searches, self._exempt = self._exempt == 0, max(0, self._exempt - 1)
        return [*self._sent(self._reader.push(text), searches)]

    def finish(self) -> list[AnswerPart]:
        """Return the rest; nothing if a stop string ended the text."""
        text = self._detokenizer.finish()
        self.length += len(text)
        return [*self._sent([*self._reader.push(text), *self._reader.finish()]), *self._held()]

    def _sent(self, parts: Iterable[AnswerPart], searches: bool = True) -> Iterator[AnswerPart]:
        for part in parts:
            if self.stopped is not None:
                return
            if not isinstance(part, Content):
                yield from self._held()
                yield part
            elif text := self._stops.push(part.text) if searches else self._stops.skip(part.text):
                yield Content(text)

    def _held(self) -> list[Content]:
        """Return the content that could have begun a stop string."""
        text = self._stops.finish()
        return [Content(text)] if text else []


def content_of(parts: Iterable[AnswerPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Content))
