"""Answer: one request's events, gathered into text and a Result."""

from collections import deque
from dataclasses import replace

from ringkv.base.events import Event, Failed, Finished, Scored, Token, TokenLogprob, Usage
from ringkv.base.failure import Failure, revive
from ringkv.base.request import Request
from ringkv.llm.result import Piece, Pieces, Result
from ringkv.text.stream import TextStream


class Answer:
    """Takes the request's events in order, and keeps their pieces for its reader.

    `stopped` says that a stop string was met, so the request may end. `is_over`: the last event has come.
    """

    def __init__(self, request: Request, text: TextStream) -> None:
        self.request = request
        self.result: Result | None = None
        self._failure: Failure | None = None
        self._unread: deque[Piece] = deque()
        self._stream, self._text = text, ""
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: list[TokenLogprob] = []

    @property
    def stopped(self) -> bool:
        return self._stream.stopped is not None

    @property
    def has_begun(self) -> bool:
        """True once it holds a token."""
        return bool(self._tokens)

    @property
    def is_over(self) -> bool:
        return self.result is not None or self._failure is not None

    @property
    def is_read(self) -> bool:
        """True once its reader has all pieces; never, if it failed."""
        return self.result is not None and not self._unread

    @property
    def has_news(self) -> bool:
        """True if `read` would give a piece, or raise."""
        return bool(self._unread) or self._failure is not None

    def read(self) -> Pieces:
        """Give the pieces that have come since the last call, then raise the error that the engine reported, if any."""
        while self._unread:
            yield self._unread.popleft()
        if self._failure is not None:
            raise revive(self._failure)

    def take(self, event: Event, usage: Usage | None) -> None:
        """Take the next event; `usage` is what the request holds by now. A token after a stop string adds nothing."""
        match event:
            case Failed(_, kind, message, param):
                self._failure = Failure(kind, message, param)
            case Scored():
                self._prompt_logprobs += event.logprobs
            case Token():
                if not self.stopped:
                    self._unread.append(replace(self._token(event), usage=usage))
            case Finished():
                self._unread.append(replace(self._finish(event), usage=event.usage))

    def _token(self, event: Token) -> Piece:
        self._tokens.append(event.token)
        if event.logprob is not None:
            self._logprobs.append(event.logprob)
        ends = self.request.ends_at(event.token, len(self._tokens))
        return self._show("" if ends else self._stream.push(event.token), event.token)

    def _finish(self, event: Finished) -> Piece:
        """A stop string ends a request early: it was cancelled by us, and its reader is told why."""
        reason = "stop" if self.stopped else event.reason
        last = self._show("" if self.stopped else self._stream.finish())
        scored = tuple(self._logprobs), tuple(self._prompt_logprobs)
        self.result = Result(self._text, tuple(self._tokens), reason, event.usage, *scored)
        return Piece(last.text, result=self.result)

    def _show(self, text: str, token: int | None = None) -> Piece:
        self._text += text
        return Piece(text, token)
