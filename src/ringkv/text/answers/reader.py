"""Reader: an answer's text to its parts, incrementally."""

from collections.abc import Iterator, Sequence

from ringkv.text.answers.spans import AnswerPart, Content, MarkedSpan
from ringkv.text.stream import pending


class Reader:
    """Searches for spans in a text that arrives in pieces; without spans every piece is returned at once.

    inside: the span that the prompt has already opened. White space after a span, and at the start of a streamed span,
    is dropped.
    """

    def __init__(self, spans: Sequence[MarkedSpan] = (), inside: MarkedSpan | None = None) -> None:
        self._spans, self._inside = tuple(spans), inside
        self._held = ""
        self._is_first = inside is None  # only white space was read so far
        self._strips = inside is not None  # white space at the start of the next text is dropped

    @property
    def is_thinking(self) -> bool:
        """Return whether the next text belongs to a streamed span."""
        return self._inside is not None and self._inside.stream is not None

    def push(self, text: str) -> list[AnswerPart]:
        """Return the parts that are complete now."""
        if not self._spans and self._inside is None and not self._strips:
            return [Content(text)] if text else []
        self._held += text
        return [part for part in self._read() if part != Content("")]

    def finish(self) -> list[AnswerPart]:
        """Return the rest at the end of the text."""
        return [part for part in self._rest() if part != Content("")]

    def _read(self) -> Iterator[AnswerPart]:
        while True:
            if self._strips:
                self._held = self._held.lstrip()
                self._strips = not self._held
            before = self._held
            yield from self._outside() if self._inside is None else self._within(self._inside)
            if self._held == before or not self._held:
                return

    def _outside(self) -> Iterator[AnswerPart]:
        spans = [span for span in self._spans if self._is_first or not span.at_start]
        begins = [(start, span) for span in spans if (start := self._held.find(span.begin)) >= 0]
        begins = [(start, span) for start, span in begins if not span.at_start or not self._held[:start].strip()]
        if not begins:
            yield from self._show(len(self._held) - pending(self._held, [span.begin for span in spans]))
            return
        start, span = min(begins, key=lambda begin: begin[0])
        yield from self._show(start)
        self._held = self._held[len(span.begin) :]
        self._inside, self._is_first, self._strips = span, False, span.stream is not None

    def _within(self, span: MarkedSpan) -> Iterator[AnswerPart]:
        end = self._held.find(span.end) if span.end else -1
        if end < 0:
            if span.stream is not None and (cut := len(self._held) - pending(self._held, [span.end])):
                yield span.stream(self._take(cut))
            return
        text = self._take(end)
        self._take(len(span.end))
        self._inside, self._strips = None, True
        yield from self._parts(span, text, span.end)

    def _rest(self) -> Sequence[AnswerPart]:
        text = self._take(len(self._held))
        # A model may omit the last end mark.
        return [Content(text)] if self._inside is None else self._parts(self._inside, text, "")

    def _parts(self, span: MarkedSpan, text: str, end: str) -> Sequence[AnswerPart]:
        """Return the parts of a span's text; an invalid span is content, with its marks."""
        if span.stream is not None:
            return [span.stream(text)] if text else []
        parts = span.parse(text)
        return [Content(span.begin + text + end)] if parts is None else parts

    def _show(self, count: int) -> Iterator[AnswerPart]:
        text = self._take(count)
        self._is_first = self._is_first and not text.strip()
        yield Content(text)

    def _take(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        return text
