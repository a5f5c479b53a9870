"""Reader: an answer's text to its parts, incrementally."""

from collections.abc import Iterator, Sequence

from ringkv.text.answers.spans import AnswerPart, Content, MarkedSpan, ReasoningEnded, ends_in_string
from ringkv.text.stop_strings import pending

MOST_INVALID = 100  # calls; the text after the begin mark of each is searched again


class Reader:
    """Searches for spans in a text that arrives in pieces; without spans every piece is returned at once.

    inside: the span that the prompt has already opened. White space after a span, and at the start of a streamed span,
    is dropped. The begin mark of an invalid span is content, and the text after it is read as any other. After
    `MOST_INVALID` of them all calls are content.
    """

    def __init__(self, spans: Sequence[MarkedSpan] = (), inside: MarkedSpan | None = None) -> None:
        self._spans, self._inside = tuple(spans), inside
        self._held = ""
        self._is_first = inside is None  # only white space was read so far
        self._strips = inside is not None  # white space at the start of the next text is dropped
        self._has_thought = inside is not None  # a streamed span has begun, or ended without a begin
        self._invalid = 0  # calls
        self._searched = self._in_string = 0  # characters of a call, of which the latter end in a string

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
            before = self._held, self._inside
            yield from self._outside() if self._inside is None else self._within(self._inside)
            if (self._held, self._inside) == before or not self._held:
                return

    def _outside(self) -> Iterator[AnswerPart]:
        spans = [span for span in self._spans if self._is_first or not span.at_start]
        if self._invalid >= MOST_INVALID:
            spans = [span for span in spans if span.stream is not None]
        alone = [span for span in self._spans if span.ends_alone and not self._has_thought]
        marks = [*((span.begin, span) for span in spans), *((span.end, None) for span in alone)]
        found = [(self._held.find(mark), mark, span) for mark, span in marks]
        starts = [each for each in found if each[0] >= 0 and not self._is_late(each[0], each[2])]
        if not starts:
            yield from self._show(len(self._held) - pending(self._held, [mark for mark, _ in marks]))
            return
        start, mark, span = min(starts, key=lambda each: each[0])
        yield from self._show(start)
        self._take(len(mark))
        self._inside, self._is_first, self._strips = span, False, span is None or span.stream is not None
        self._has_thought |= self._strips
        self._searched = self._in_string = 0
        if span is None:
            yield ReasoningEnded()

    def _is_late(self, start: int, span: MarkedSpan | None) -> bool:
        """Return whether text precedes a span that is only valid before all other text."""
        return span is not None and span.at_start and bool(self._held[:start].strip())

    def _within(self, span: MarkedSpan) -> Iterator[AnswerPart]:
        end = self._end(span)
        if end < 0:
            if span.stream is not None and (cut := len(self._held) - pending(self._held, [span.end])):
                yield span.stream(self._take(cut))
            return
        self._inside = None
        parts = _parts(span, self._held[:end])
        if parts is None:
            self._invalid += 1
            yield Content(span.begin)
            return
        self._take(end + len(span.end))
        self._strips = True
        yield from parts

    def _end(self, span: MarkedSpan) -> int:
        """Return where the end mark begins; -1 if it has not come. A mark in a string of a call is text."""
        if span.stream is not None or not span.end:
            return self._held.find(span.end) if span.end else -1
        while (end := self._held.find(span.end, self._searched)) >= 0:
            before = ('{"' if self._in_string else "") + self._held[self._in_string : end]
            if not ends_in_string(before):
                return end
            self._searched = self._in_string = end + 1
        self._searched = max(self._searched, len(self._held) - len(span.end) + 1)
        return -1

    def _rest(self) -> Iterator[AnswerPart]:
        """Yield the parts of the held text, in which a model may omit the last end mark."""
        while (span := self._inside) is not None and (parts := _parts(span, self._held)) is None:
            self._inside = None
            self._invalid += 1
            yield Content(span.begin)
            yield from self._read()
        yield from [Content(self._held)] if span is None else parts or ()
        self._held = ""

    def _show(self, count: int) -> Iterator[AnswerPart]:
        text = self._take(count)
        self._is_first = self._is_first and not text.strip()
        yield Content(text)

    def _take(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        return text


def _parts(span: MarkedSpan, text: str) -> Sequence[AnswerPart] | None:
    """Return the parts of a complete span's text; None if the span is invalid, and its marks are content."""
    if span.stream is None:
        return span.parse(text)
    return [span.stream(text)] if text else []
