"""From engine events to pieces of text: one piece a generated token."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from ringkv.base.events import Event, Failed, Finished, FinishReason, Scored, Token, TokenLogprob, Usage
from ringkv.base.failure import Failure, revive
from ringkv.base.request import Request
from ringkv.server.channel import EngineChannel
from ringkv.server.metrics import Meter
from ringkv.text.stream import TextStream


@dataclass(frozen=True)
class Finish:
    reason: FinishReason
    usage: Usage


@dataclass(frozen=True)
class Piece:
    """What one generated token adds to an answer.

    token: None only where an answer ends later than its last token. text: may be empty (half a code point, the start
    of what may become a stop string, an end of sequence). offset: characters of the answer's tokens before this one.
    prompt: what the prompt's tokens but the first were worth, with the first piece. finish: with the last one.
    """

    token: int | None
    text: str
    offset: int
    is_first: bool
    logprob: TokenLogprob | None = None
    prompt: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None


Pieces = AsyncGenerator[tuple[int, Piece], None]
"""Each with the number of its answer."""


class Telling:
    """One request's events to pieces. stopped: a stop string was met, so that the request may be cancelled."""

    def __init__(self, request: Request, transcript: TextStream, meter: Meter) -> None:
        self.request = request
        self._transcript, self._meter = transcript, meter
        self._prompt: tuple[TokenLogprob, ...] = ()
        self._last: Piece | None = None  # a token that ends the answer waits for its Finished, to be sent with it
        self._count = 0

    @property
    def stopped(self) -> bool:
        return self._transcript.stopped is not None

    def take(self, event: Event) -> Piece | None:
        """The piece that can be sent now. Raises what the engine reports as an error."""
        match event:
            case Failed():
                raise revive(Failure(event.kind, event.message, event.param))
            case Scored():
                self._prompt += event.logprobs
            case Finished():
                self._meter.finished(event.usage)
                return self._finished(event)
            case Token() if not self.stopped:  # else it was in flight when we cancelled
                return self._token(event)
        return None

    def _token(self, event: Token) -> Piece | None:
        self._meter.token()
        self._count += 1
        offset = self._transcript.length
        text = "" if self.request.ends_at(event.token, self._count) else self._transcript.push(event.token)
        prompt = self._prompt if self._count == 1 else ()
        piece = Piece(event.token, text, offset, self._count == 1, event.logprob, prompt)
        if not (self.stopped or event.is_last):
            return piece
        self._last = piece
        return None

    def _finished(self, event: Finished) -> Piece:
        """The last piece: with the text still held back, the reason, and a usage that counts what the client got."""
        reason = "stop" if self.stopped else event.reason
        piece = self._last or Piece(None, "", self._transcript.length, self._count == 0)
        usage = replace(event.usage, completion_tokens=self._count)
        return replace(piece, text=piece.text + self._transcript.finish(), finish=Finish(reason, usage))


async def generate(engine: EngineChannel, answers: Sequence[Telling]) -> Pieces:
    """The pieces of requests with one prompt, each with its number; closing this early cancels those that still run."""
    numbers = {answer.request.id: number for number, answer in enumerate(answers)}
    async with aclosing(engine.submit(*(answer.request for answer in answers))) as events:
        async for event in events:
            number = numbers[event.request_id]
            answer, was_stopped = answers[number], answers[number].stopped
            piece = answer.take(event)
            if answer.stopped and not was_stopped:
                engine.cancel(event.request_id)
            if piece is not None:
                yield number, piece


@dataclass(frozen=True)
class _End:
    error: Exception | None


async def merge(streams: Sequence[Pieces], answers: int) -> Pieces:
    """All streams' pieces as they come, of `answers` each, numbered through; the first error ends them all."""
    queue: asyncio.Queue[tuple[int, Piece] | _End] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(n * answers, stream, queue)) for n, stream in enumerate(streams)]
    running = len(pumps)
    try:
        while running:
            match await queue.get():
                case _End(error=None):
                    running -= 1
                case _End(error=Exception() as error):
                    raise error
                case (int(), Piece()) as item:
                    yield item
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(first: int, stream: Pieces, queue: "asyncio.Queue[tuple[int, Piece] | _End]") -> None:
    error: Exception | None = None
    try:
        async with aclosing(stream):
            async for number, piece in stream:
                queue.put_nowait((first + number, piece))
    except Exception as raised:
        error = raised
    queue.put_nowait(_End(error))
