"""Turns engine events into token outputs, one per generated token, and merges the streams of several prompts."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from ringkv.base.errors import TooSlow
from ringkv.base.events import Event, Failed, Finished, FinishReason, Scored, Token, TokenLogprob, Usage
from ringkv.base.failure import Failure, revive
from ringkv.base.request import Request
from ringkv.server.channel import EngineChannel
from ringkv.server.metrics import Meter
from ringkv.text.stream import TextStream

MOST_UNSENT = 16_384  # outputs that wait for a client to read those before them


@dataclass(frozen=True)
class Finish:
    reason: FinishReason
    usage: Usage


@dataclass(frozen=True)
class TokenOutput:
    """What one generated token adds to a choice.

    token: None only if the choice ends after its last token was sent.
    text: may be empty: half a code point, the possible start of a stop string, an end of sequence.
    offset: characters of the choice's tokens before this one.
    prompt_logprobs: of the prompt's tokens except the first; only in the first output.
    finish: only in the last output.
    """

    token: int | None
    text: str
    offset: int
    is_first: bool
    logprob: TokenLogprob | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None


OutputStream = AsyncGenerator[tuple[int, TokenOutput], None]
"""Pairs of a choice's index and its next output."""


class OutputProcessor:
    """Turns one request's events into outputs. stopped: a stop string was found, so the request can be cancelled."""

    def __init__(self, request: Request, text_stream: TextStream, meter: Meter) -> None:
        self.request = request
        self._text_stream, self._meter = text_stream, meter
        self._prompt_logprobs: tuple[TokenLogprob, ...] = ()
        self._last: TokenOutput | None = None  # the output that ends the choice; it is sent with its Finished event
        self._count = 0

    @property
    def stopped(self) -> bool:
        return self._text_stream.stopped is not None

    def process(self, event: Event) -> TokenOutput | None:
        """Return the output that can be sent now. Raises the error of a Failed event."""
        match event:
            case Failed():
                raise revive(Failure(event.kind, event.message, event.param))
            case Scored():
                self._prompt_logprobs += event.logprobs
            case Finished():
                self._meter.finished(event.usage)
                return self._finished(event)
            case Token() if not self.stopped:  # else it was in flight when we cancelled
                return self._token(event)
        return None

    def _token(self, event: Token) -> TokenOutput | None:
        self._meter.token()
        self._count += 1
        offset = self._text_stream.length
        text = "" if self.request.ends_at(event.token, self._count) else self._text_stream.push(event.token)
        prompt_logprobs = self._prompt_logprobs if self._count == 1 else ()
        output = TokenOutput(event.token, text, offset, self._count == 1, event.logprob, prompt_logprobs)
        if not (self.stopped or event.is_last):
            return output
        self._last = output
        return None

    def _finished(self, event: Finished) -> TokenOutput:
        """Return the last output: the text held back, the finish reason, and a usage that counts the tokens sent."""
        reason = "stop" if self.stopped else event.reason
        output = self._last or TokenOutput(None, "", self._text_stream.length, self._count == 0)
        usage = replace(event.usage, completion_tokens=self._count)
        return replace(output, text=output.text + self._text_stream.finish(), finish=Finish(reason, usage))


async def generate(engine: EngineChannel, processors: Sequence[OutputProcessor]) -> OutputStream:
    """Run requests that share one prompt, and yield the outputs of each with its index in `processors`.

    Closing the generator cancels the requests that still run.
    """
    indices = {processor.request.id: index for index, processor in enumerate(processors)}
    async with aclosing(engine.submit(*(processor.request for processor in processors))) as events:
        async for event in events:
            index = indices[event.request_id]
            processor, was_stopped = processors[index], processors[index].stopped
            output = processor.process(event)
            if processor.stopped and not was_stopped:
                engine.cancel(event.request_id)
            if output is not None:
                yield index, output


@dataclass(frozen=True)
class _End:
    error: Exception | None


async def merge(streams: Sequence[OutputStream], per_prompt: int) -> OutputStream:
    """Yield all streams' outputs as they arrive; stream n's indices are offset by n * `per_prompt`.

    The first error ends all streams. TooSlow ends a stream that has `MOST_UNSENT` outputs waiting, at once, so that its
    slot is free while its reader waits.
    """
    queue: asyncio.Queue[tuple[int, TokenOutput] | _End] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(n * per_prompt, stream, queue)) for n, stream in enumerate(streams)]
    running = len(pumps)
    try:
        while running:
            match await queue.get():
                case _End(error=None):
                    running -= 1
                case _End(error=Exception() as error):
                    raise error
                case (int(), TokenOutput()) as item:
                    yield item
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(first: int, stream: OutputStream, queue: "asyncio.Queue[tuple[int, TokenOutput] | _End]") -> None:
    error: Exception | None = None
    try:
        async with aclosing(stream):
            async for index, output in stream:
                if queue.qsize() >= MOST_UNSENT:
                    raise TooSlow(f"{MOST_UNSENT:,} tokens wait to be read; read the answer as it comes")
                queue.put_nowait((first + index, output))
    except Exception as raised:
        error = raised
    queue.put_nowait(_End(error))
