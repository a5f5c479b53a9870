"""Reader: an answer's text, as it comes, to its parts."""

from collections.abc import Iterator, Sequence

from ringkv.text.answers.parts import Content, Part
from ringkv.text.answers.spans import Span, shown
from ringkv.text.stop import pending


class Reader:
    """Looks for spans in a text that arrives in pieces; without any it shows all at once.

    inside: the span that the prompt has begun already. White space after a span, and at the start of one that is told
    as it comes, is not shown.
    """

    def __init__(self, spans: Sequence[Span] = (), inside: Span | None = None) -> None:
        self._spans, self._inside = tuple(spans), inside
        self._held = ""
        self._is_first = inside is None  # nothing but white space was read yet
        self._strips = inside is not None  # white space at the start of what comes is dropped

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next belongs to a span that is told as it comes."""
        return self._inside is not None and self._inside.stream is not None

    def push(self, text: str) -> list[Part]:
        """Return the parts that can be told now."""
        self._held += text
        return [part for part in self._read() if part != Content("")]

    def finish(self) -> list[Part]:
        """Return the rest, as no more text comes."""
        return [part for part in self._rest() if part != Content("")]

    def _read(self) -> Iterator[Part]:
        while True:
            if self._strips:
                self._held = self._held.lstrip()
                self._strips = not self._held
            before = self._held
            yield from self._outside() if self._inside is None else self._within(self._inside)
            if self._held == before or not self._held:
                return

    def _outside(self) -> Iterator[Part]:
        spans = self._possible()
        found = [(at, span) for span in spans if (at := self._held.find(span.begin)) >= 0]
        found = [(at, span) for at, span in found if not span.leads or not self._held[:at].strip()]
        if not found:
            yield from self._show(len(self._held) - pending(self._held, [span.begin for span in spans]))
            return
        at, span = min(found, key=lambda one: one[0])
        yield from self._show(at)
        self._held = self._held[len(span.begin) :]
        self._inside, self._is_first, self._strips = span, False, span.stream is not None

    def _within(self, span: Span) -> Iterator[Part]:
        at = self._held.find(span.end) if span.end else -1
        if at < 0:
            if span.stream is not None and (cut := len(self._held) - pending(self._held, [span.end])):
                yield span.stream(self._take(cut))
            return
        text = self._take(at)
        self._take(len(span.end))
        self._inside, self._strips = None, True
        yield from self._whole(span, text)

    def _whole(self, span: Span, text: str) -> Sequence[Part]:
        if span.stream is not None:
            return [span.stream(text)] if text else []
        parts = span.read(text)
        return [shown(span, text)] if parts is None else parts

    def _rest(self) -> Iterator[Part]:
        text, span = self._take(len(self._held)), self._inside
        if span is None:
            yield Content(text)
        elif span.stream is not None:
            yield from [span.stream(text)] if text else []
        else:
            parts = span.read(text)  # a model may leave out the last end
            yield from [Content(span.begin + text)] if parts is None else parts

    def _possible(self) -> list[Span]:
        return [span for span in self._spans if self._is_first or not span.leads]

    def _show(self, count: int) -> Iterator[Part]:
        text = self._take(count)
        self._is_first = self._is_first and not text.strip()
        yield Content(text)

    def _take(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        return text
