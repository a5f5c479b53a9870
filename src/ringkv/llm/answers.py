"""Answers: the table of open answers on one loop.

Several readers may read in turns. Whoever needs a piece takes the loop's next step; pieces that it brings for other
readers wait in their answers.
"""

from collections.abc import Callable, Sequence
from functools import partial

from ringkv.base.events import Event
from ringkv.llm.answer import Answer
from ringkv.llm.result import Pieces
from ringkv.scheduler.loop import Loop

OnPrefill = Callable[[int, int], None]
"""Prompt tokens prefilled, and in all."""


class Answers:
    """Use it from one thread."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._open: dict[str, Answer] = {}  # by request id, until the last event or until the reader leaves
        self._abandoned: list[str] = []  # ids to cancel
        self._is_busy = False

    def serve(self, answers: Sequence[Answer], on_prefill: OnPrefill | None = None) -> Pieces:
        """Serve all to their end and give their pieces. Closing the generator early cancels what is unfinished.

        `on_prefill` is called with the progress of the first answer's prompt. Raises the error of the first that fails.
        """
        try:
            for answer in answers:
                self._open[answer.request.id] = answer
                self._run(partial(self._loop.submit, answer.request))
                yield from answer.read()
            while not all(answer.is_read for answer in answers):
                if not any(answer.has_news for answer in answers):
                    self._step()
                    self._report(answers[0], on_prefill)
                for answer in answers:
                    yield from answer.read()
        finally:
            self._abandon(answers)

    def _step(self) -> None:
        assert not self._loop.idle, "an open answer's request is lost"
        self._run(self._loop.step)

    def _run(self, verb: Callable[[], list[Event]]) -> None:
        """Deliver the events of a verb of the loop, then cancel the requests whose readers left meanwhile."""
        self._is_busy = True
        try:
            self._deliver(verb())
            while self._abandoned:
                self._loop.cancel(self._abandoned.pop())
        finally:
            self._is_busy = False

    def _deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            name = event.request_id
            if (answer := self._open.get(name)) is None:
                continue
            answer.take(event, self._loop.usage(name))
            if answer.is_over:
                self._open.pop(name, None)
            elif answer.stopped:
                self._deliver(self._loop.cancel(name))

    def _abandon(self, answers: Sequence[Answer]) -> None:
        """The reader leaves. The garbage collector may close a generator in the middle of a verb: that ends first."""
        self._abandoned += [name for answer in answers if self._open.pop(name := answer.request.id, None)]
        if not self._is_busy:
            self._run(lambda: [])

    def _report(self, answer: Answer, on_prefill: OnPrefill | None) -> None:
        """Report the prompt's progress, until its first token is there."""
        done = self._loop.prefilled(answer.request.id)
        if on_prefill is not None and done and not answer.has_begun:
            on_prefill(done, len(answer.request.tokens))
