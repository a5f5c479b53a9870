"""Answer: one request's events, gathered into text and a Result."""

from ringkv.base.events import Event, Failed, Finished, Scored, Token, TokenLogprob
from ringkv.base.failure import Failure, revive
from ringkv.base.request import Request
from ringkv.llm.result import Piece, Result
from ringkv.text.stream import TextStream


class Answer:
    """Fed with the request's events in order; `stopped` says that a stop string was met and the request may end."""

    def __init__(self, request: Request, text: TextStream) -> None:
        self.request = request
        self.result: Result | None = None
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

    def take(self, event: Event) -> Piece | None:
        """The piece that an event adds; None for a token drawn after the end. Raises what the engine reports."""
        match event:
            case Failed():
                raise revive(Failure(event.kind, event.message, event.param))
            case Scored():
                self._prompt_logprobs += event.logprobs
                return None
            case Token():
                return None if self.stopped else self._token(event)
            case Finished():
                return self._finish(event)

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
