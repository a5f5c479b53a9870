"""Turns engine events into token outputs, an output for each generated token."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from ringkv.base.events import Event, Failed, Finished, FinishReason, Scored, Token, TokenLogprob, Usage
from ringkv.base.failure import Failure, revive
from ringkv.base.request import Request
from ringkv.server.run.metrics import Meter
from ringkv.text.answers.answer_stream import AnswerStream, content_of
from ringkv.text.answers.spans import AnswerPart
from ringkv.worker.supervisor import Supervisor


@dataclass(frozen=True)
class Finish:
    reason: FinishReason
    usage: Usage


@dataclass(frozen=True)
class TokenOutput:
    """What a generated token adds to a choice.

    token: None only if the choice ends after its last token was sent.
    parts: may be empty: half a code point, the possible start of a stop string or of a span, an end of sequence.
    offset: characters of the choice's tokens before this token.
    prompt_logprobs: of the prompt's tokens except the first; only in the first output.
    finish: only in the last output.
    is_reasoning: the token belongs to the reasoning, think tags included.
    """

    token: int | None
    parts: Sequence[AnswerPart]
    offset: int
    is_first: bool
    logprob: TokenLogprob | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None
    is_reasoning: bool = False

    @property
    def text(self) -> str:
        """The content alone."""
        return content_of(self.parts)


Outputs = Sequence[tuple[int, TokenOutput]]
"""Pairs of a choice's index and its next output."""

OutputStream = AsyncGenerator[Outputs, None]
"""Outputs as they arrive; never an empty sequence."""


class OutputProcessor:
    """Turns one request's events into outputs. stopped: a stop string was found, so the request can be cancelled."""

    def __init__(self, request: Request, stream: AnswerStream, meter: Meter) -> None:
        self.request = request
        self._stream, self._meter = stream, meter
        self._prompt_logprobs: tuple[TokenLogprob, ...] = ()
        self._last: TokenOutput | None = None  # the output that ends the choice; it is sent with its Finished event
        self._count = 0

    @property
    def stopped(self) -> bool:
        return self._stream.stopped is not None

    def process(self, event: Event) -> TokenOutput | None:
        """Return the output that can be sent now. Raises the error of a Failed event."""
        match event:
            case Token():
                return None if self.stopped else self._token(event)  # it was in flight when we cancelled
            case Scored():
                self._prompt_logprobs += event.logprobs
                return None
            case Finished():
                self._meter.finished(event.usage)
                return self._finished(event)
            case Failed():
                raise revive(Failure(event.kind, event.message, event.param))

    def _token(self, event: Token) -> TokenOutput | None:
        self._meter.token()
        self._count += 1
        offset, was_thinking = self._stream.length, self._stream.is_thinking
        parts = [] if self.request.ends_at(event.token, self._count) else self._stream.push(event.token)
        output = TokenOutput(
            event.token,
            parts,
            offset,
            is_first=self._count == 1,
            logprob=event.logprob,
            prompt_logprobs=self._prompt_logprobs if self._count == 1 else (),
            is_reasoning=was_thinking or self._stream.is_thinking,
        )
        if not (self.stopped or event.is_last):
            return output
        self._last = output
        return None

    def _finished(self, event: Finished) -> TokenOutput:
        """Return the last output: the parts held back, the finish reason, and a usage that counts the tokens sent."""
        output = self._last or TokenOutput(None, (), self._stream.length, is_first=self._count == 0)
        parts = [*output.parts, *self._stream.finish()]
        reason = "stop" if self.stopped else event.reason
        usage = replace(event.usage, completion_tokens=self._count)
        return replace(output, parts=parts, finish=Finish(reason, usage))


async def generate(engine: Supervisor, groups: Sequence[Sequence[OutputProcessor]]) -> OutputStream:
    """Run requests, those of a group on one prompt, and yield their outputs. A choice's index counts over all groups.

    A request whose stop string is complete is cancelled. The first error ends all. Closing the generator cancels the
    requests that still run.
    """
    processors = [processor for group in groups for processor in group]
    indices = {processor.request.id: index for index, processor in enumerate(processors)}
    requests = [[processor.request for processor in group] for group in groups]
    async with aclosing(engine.submit(requests)) as batches:
        async for events in batches:
            outputs: list[tuple[int, TokenOutput]] = []
            try:
                for event in events:
                    processor = processors[index := indices[event.request_id]]
                    was_stopped = processor.stopped
                    if (output := processor.process(event)) is not None:
                        outputs.append((index, output))
                    if processor.stopped and not was_stopped:
                        engine.cancel(event.request_id)
            except Exception:
                if outputs:
                    yield outputs
                raise
            if outputs:
                yield outputs
