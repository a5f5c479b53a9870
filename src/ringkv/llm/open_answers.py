"""OpenAnswers: the open answers of one loop.

Several streams may be read in turn. A reader that has no piece runs the loop's next step; pieces of other requests
wait in their answers.
"""

from collections.abc import Callable, Sequence
from functools import partial

from ringkv.base.events import Event
from ringkv.llm.open_answer import OpenAnswer
from ringkv.llm.result import Stream
from ringkv.scheduler.loop import Loop

OnPrefill = Callable[[int, int], None]
"""Called with the number of prefilled prompt tokens and of all prompt tokens."""


class OpenAnswers:
    """Not thread-safe."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._open: dict[str, OpenAnswer] = {}  # by request id, until the last event or until its reader closes it
        self._abandoned: list[str] = []  # request ids to cancel
        self._is_busy = False

    def serve(self, answers: Sequence[OpenAnswer], on_prefill: OnPrefill | None = None) -> Stream:
        """Run all requests to their end and yield their pieces. Closing the generator cancels unfinished requests.

        `on_prefill` is called with the progress of the first answer's prompt. Raises the error of the first that fails.
        """
        try:
            for answer in answers:
                self._open[answer.request.id] = answer
                self._run(partial(self._loop.submit, answer.request))
                yield from answer.read()
            while not all(answer.is_read for answer in answers):
                if not any(answer.is_ready for answer in answers):
                    assert not self._loop.idle, "an open answer's request is lost"
                    self._run(self._loop.step)
                    self._report(answers[0], on_prefill)
                for answer in answers:
                    yield from answer.read()
        finally:
            self._abandon(answers)

    def _run(self, verb: Callable[[], list[Event]]) -> None:
        """Call a method of the loop and deliver its events, then cancel requests that were abandoned meanwhile."""
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
            answer.take(event, self._loop.scheduler.usage(name))
            if answer.is_over:
                self._open.pop(name, None)
            elif answer.stopped:
                self._deliver(self._loop.cancel(name))

    def _abandon(self, answers: Sequence[OpenAnswer]) -> None:
        """Cancel what is unfinished, after the running call: garbage collection may close a generator during one."""
        self._abandoned += [name for answer in answers if self._open.pop(name := answer.request.id, None)]
        if not self._is_busy:
            self._run(lambda: [])

    def _report(self, answer: OpenAnswer, on_prefill: OnPrefill | None) -> None:
        """Report the prompt's progress, until its first token arrives."""
        done = self._loop.scheduler.prefilled(answer.request.id)
        if on_prefill is not None and done and not answer.has_begun:
            on_prefill(done, len(answer.request.tokens))
