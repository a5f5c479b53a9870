"""From engine events to pieces of text: one piece a generated token."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from ringkv.base.events import Failed, Finished, FinishReason, Token, TokenLogprob, Usage
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
    finish: comes with the answer's last piece.
    """

    token: int | None
    text: str
    offset: int
    is_first: bool
    logprob: TokenLogprob | None = None
    finish: Finish | None = None


async def generate(
    engine: EngineChannel, request: Request, transcript: TextStream, meter: Meter
) -> AsyncGenerator[Piece, None]:
    """One request's pieces; closing this early cancels the request. Raises what the engine reports as an error."""
    meter.submitted(len(request.tokens))
    most = min(request.sampling.max_tokens, engine.limits.context - len(request.tokens))
    last: Piece | None = None  # a token that ends the answer waits for its Finished, to be sent with it
    count, stopped = 0, False
    async with aclosing(engine.submit(request)) as events:
        async for event in events:
            match event:
                case Failed():
                    raise revive(Failure(event.kind, event.message, event.param))
                case Finished():
                    meter.finished(event.usage)
                    yield _finished(last, event, transcript, count)
                    return
                case Token() if not stopped:  # else it was in flight when we cancelled
                    meter.token()
                    count += 1
                    piece = _piece(event, request, transcript, count)
                    stopped = transcript.stopped is not None
                    if stopped:
                        engine.cancel(request.id)
                    if stopped or count >= most or request.ends_at(event.token, count):
                        last = piece
                    else:
                        yield piece


def _piece(event: Token, request: Request, transcript: TextStream, count: int) -> Piece:
    offset = transcript.length
    text = "" if request.ends_at(event.token, count) else transcript.push(event.token)
    return Piece(event.token, text, offset, count == 1, event.logprob)


def _finished(last: Piece | None, event: Finished, transcript: TextStream, count: int) -> Piece:
    """The last piece: with the text still held back, the reason, and a usage that counts what the client got."""
    reason = "stop" if transcript.stopped is not None else event.reason
    piece = last or Piece(None, "", transcript.length, count == 0)
    usage = replace(event.usage, completion_tokens=count)
    return replace(piece, text=piece.text + transcript.finish(), finish=Finish(reason, usage))


@dataclass(frozen=True)
class _End:
    error: Exception | None


async def merge(streams: Sequence[AsyncGenerator[Piece, None]]) -> AsyncGenerator[tuple[int, Piece], None]:
    """All streams' pieces as they come, each with the number of its stream; the first error ends them all."""
    queue: asyncio.Queue[tuple[int, Piece] | _End] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(index, stream, queue)) for index, stream in enumerate(streams)]
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


async def _pump(
    index: int, stream: AsyncGenerator[Piece, None], queue: "asyncio.Queue[tuple[int, Piece] | _End]"
) -> None:
    error: Exception | None = None
    try:
        async with aclosing(stream):
            async for piece in stream:
                queue.put_nowait((index, piece))
    except Exception as raised:
        error = raised
    queue.put_nowait(_End(error))
