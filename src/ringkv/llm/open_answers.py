"""OpenAnswers: the open answers of one loop. OpenAnswer: one request's events as text and a `Result`.

Several streams may be read in turn, and in several threads. A reader that has no piece runs the loop's next step;
pieces of other requests wait in their answers.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import RLock

from ringkv.base.events import Event, Failed, Finished, Scored, Token, TokenLogprob, Usage
from ringkv.base.failure import Failure, revive
from ringkv.base.request import Request
from ringkv.llm.result import Result, Stream, StreamPiece
from ringkv.scheduler.loop import Loop
from ringkv.text.answers.answer_stream import AnswerStream, content_of

OnPrefill = Callable[[int, int], None]
"""Called with the number of prefilled prompt tokens and of all prompt tokens."""


class OpenAnswer:
    """Takes one request's events in order and buffers their pieces until they are read.

    stopped: a stop string was found, so the request may be cancelled. is_over: the last event has arrived.
    """

    def __init__(self, request: Request, stream: AnswerStream) -> None:
        self.request = request
        self.result: Result | None = None
        self._failure: Failure | None = None
        self._unread: deque[StreamPiece] = deque()
        self._stream, self._text = stream, ""
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: list[TokenLogprob] = []

    @property
    def stopped(self) -> bool:
        return self._stream.stopped is not None

    @property
    def has_begun(self) -> bool:
        """True after the first token."""
        return bool(self._tokens)

    @property
    def is_over(self) -> bool:
        return self.result is not None or self._failure is not None

    def read(self) -> Stream:
        """Yield the unread pieces, then raise the error that the engine reported, if any."""
        while self._unread:
            yield self._unread.popleft()
        if self._failure is not None:
            raise revive(self._failure)

    def take(self, event: Event, usage: Usage | None) -> None:
        """Take the next event; `usage` is the request's current usage. Tokens after a stop string are ignored."""
        match event:
            case Failed(_, kind, message, param):
                self._failure = Failure(kind, message, param)
            case Scored():
                self._prompt_logprobs += event.logprobs
            case Token():
                if not self.stopped:
                    self._unread.append(StreamPiece(self._text_of(event), event.token, usage=usage))
            case Finished():
                rest = content_of(self._stream.finish())
                self.result = self._result(self._text + rest, event)
                self._unread.append(StreamPiece(rest, result=self.result, usage=event.usage))

    def _text_of(self, event: Token) -> str:
        self._tokens.append(event.token)
        if event.logprob is not None:
            self._logprobs.append(event.logprob)
        ends = self.request.ends_at(event.token, len(self._tokens))
        text = "" if ends else content_of(self._stream.push(event.token))
        self._text += text
        return text

    def _result(self, text: str, event: Finished) -> Result:
        """After a stop string the engine reports "abort", because we cancelled; the result is "stop"."""
        reason = "stop" if self.stopped else event.reason
        scored = tuple(self._logprobs), tuple(self._prompt_logprobs)
        return Result(text, tuple(self._tokens), reason, event.usage, *scored)


Ready = dict[str, OpenAnswer]
"""Answers that got events since their reader last looked, by request id."""


class OpenAnswers:
    """One step runs at a time. A step that is interrupted fails all open answers, because it may be half done."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._lock = RLock()  # held while the loop runs; garbage collection may come back in the same thread
        # By request id, with its reader's answers that got events; until the last event or until its reader closes it.
        self._open: dict[str, tuple[OpenAnswer, Ready]] = {}
        self._abandoned: list[str] = []  # request ids to cancel
        self._is_busy = False

    def serve(self, answers: Sequence[OpenAnswer], on_prefill: OnPrefill | None = None) -> Stream:
        """Run all requests to their end and yield their pieces. Closing the generator cancels unfinished requests.

        `on_prefill` is called with the progress of the first answer's prompt. Raises the error of the first that fails.
        """
        unread, ready = len(answers), Ready()
        try:
            for answer in answers:
                with self._lock:
                    self._open[answer.request.id] = answer, ready
                    self._run(partial(self._loop.submit, answer.request))
                yield from answer.read()
            while unread:
                with self._lock:
                    if not ready:
                        assert not self._loop.idle, "an open answer's request is lost"
                        self._run(self._loop.step)
                        self._report(answers[0], on_prefill)
                    got = [*ready.values()]
                    ready.clear()
                    unread -= sum(answer.is_over for answer in got)
                for answer in got:
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
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._is_busy = False

    def _fail(self, error: BaseException) -> None:
        """Fail all open answers. Their requests are cancelled in the next call of the loop."""
        text = f"a step was interrupted by {type(error).__name__}; send the request again"
        for name in [*self._open]:
            self._take(Failed(name, "RequestFailed", text))
            self._abandoned.append(name)

    def _take(self, event: Event) -> OpenAnswer | None:
        """Give an event to its answer, and return the answer; None if it is not open."""
        name = event.request_id
        if name not in self._open:
            return None
        answer, ready = self._open[name]
        answer.take(event, self._loop.scheduler.usage(name))
        ready[name] = answer
        if answer.is_over:
            del self._open[name]
        return answer

    def _deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            answer = self._take(event)
            if answer is not None and answer.stopped and not answer.is_over:
                self._deliver(self._loop.cancel(event.request_id))

    def _abandon(self, answers: Sequence[OpenAnswer]) -> None:
        """Cancel what is unfinished, after the running call: garbage collection may close a generator during one."""
        with self._lock:
            self._abandoned += [each.request.id for each in answers if self._open.pop(each.request.id, None)]
            if not self._is_busy:
                self._run(lambda: [])

    def _report(self, answer: OpenAnswer, on_prefill: OnPrefill | None) -> None:
        """Report the prompt's progress, until its first token arrives."""
        done = self._loop.scheduler.prefilled(answer.request.id)
        if on_prefill is not None and done and not answer.has_begun:
            on_prefill(done, len(answer.request.tokens))
