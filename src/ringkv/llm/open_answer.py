"""OpenAnswer: collects one request's events into text and a Result."""

from collections import deque

from ringkv.base.events import Event, Failed, Finished, Scored, Token, TokenLogprob, Usage
from ringkv.base.failure import Failure, revive
from ringkv.base.request import Request
from ringkv.llm.result import Result, Stream, StreamPiece
from ringkv.text.answers.answer_stream import AnswerStream, content_of


class OpenAnswer:
    """Takes the request's events in order and buffers their pieces until they are read.

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
