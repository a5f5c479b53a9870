"""Runs the requests of one HTTP call and returns one JSON body or an event stream.

Chats and completions differ only in their `Formatter`.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from time import perf_counter
from typing import Any, Protocol

from fastapi import Request as HTTPRequest
from fastapi import Response
from fastapi.responses import JSONResponse

from ringkv.base.request import Request
from ringkv.server.admission import admitted, sent_by
from ringkv.server.best import best
from ringkv.server.disconnect import until_disconnected
from ringkv.server.envelope import Envelope
from ringkv.server.generation import OutputProcessor, OutputStream, TokenOutput, generate
from ringkv.server.keys import caller_of
from ringkv.server.middleware import ARRIVED
from ringkv.server.request_log import MODEL, USAGE_COUNTER
from ringkv.server.schemas import ChoicesBody, StreamOptions
from ringkv.server.serving import Serving
from ringkv.server.stream import EventStream
from ringkv.server.usage import UsageCounter
from ringkv.text.stream import TextStream

JSON = dict[str, Any]


class Formatter(Protocol):
    """Formats one endpoint's answers. continues: the text continues its prompt, so it keeps a leading space."""

    @property
    def continues(self) -> bool: ...

    def complete(self, choices: Sequence[Sequence[TokenOutput]], usage: JSON) -> JSON:
        """Return the body of a non-streamed answer with all choices."""
        ...

    @property
    def head(self) -> JSON:
        """The first fields of every chunk."""
        ...

    def choice(self, index: int, output: TokenOutput) -> JSON:
        """Return a chunk's choice, for one token of the choice at `index`."""
        ...

    def usage(self, usage: JSON) -> JSON:
        """Return the usage of a streamed answer, for the last chunk."""
        ...


async def answer(
    serving: Serving, http: HTTPRequest, body: ChoicesBody, requests: Sequence[Sequence[Request]], formatter: Formatter
) -> Response:
    """Run all requests concurrently. `requests` has one group per prompt and one request per choice."""
    outputs, counter = start(serving, http, requests, formatter.continues)
    if body.stream:
        return EventStream(chunks(outputs, formatter, counter, body.stream_options or StreamOptions()))
    work = collect(outputs, formatter, counter, sum(map(len, requests)), body)
    return JSONResponse(await until_disconnected(http.receive, work))


def start(
    serving: Serving, http: HTTPRequest, requests: Sequence[Sequence[Request]], continues: bool
) -> tuple[OutputStream, UsageCounter]:
    """Return the stream of all choices' outputs, and their usage counter. continues: as in `Formatter`."""

    def processor(request: Request, is_first: bool) -> OutputProcessor:
        detokenizer, sampling = serving.tokenizer.detokenizer(continues=continues), request.sampling
        text_stream = TextStream(detokenizer, sampling.stop, sampling.min_tokens)
        meter = serving.metrics.meter(http.scope[ARRIVED], is_first)
        return OutputProcessor(request, text_stream, meter)

    prompt_tokens = sum(len(group[0].tokens) for group in requests)
    caller, passed = caller_of(http.scope), perf_counter() - http.scope[ARRIVED]
    requests = [
        [replace(sent_by(caller.label, one, passed), salt=caller.salt(one.salt)) for one in group] for group in requests
    ]
    outputs = generate(serving.engine, [[processor(one, one is group[0]) for one in group] for group in requests])
    http.scope[MODEL] = serving.names[0]
    counter = http.scope[USAGE_COUNTER] = UsageCounter(prompt_tokens, len(requests[0]))
    return admitted(serving.admission, requests, outputs), counter


async def collect(
    outputs: OutputStream, formatter: Formatter, counter: UsageCounter, count: int, body: ChoicesBody
) -> JSON:
    """Return the body of a non-streamed answer, once all `count` choices are finished."""
    choices: list[list[TokenOutput]] = [[] for _ in range(count)]
    async with aclosing(outputs):
        async for batch in outputs:
            for index, output in batch:
                counter.add(index, output)
                choices[index].append(output)
    return formatter.complete(best(choices, body), counter.usage())


async def chunks(
    outputs: OutputStream, formatter: Formatter, counter: UsageCounter, options: StreamOptions
) -> AsyncGenerator[bytes, None]:
    """Yield events with one chunk per output, those of a batch joined.

    With `include_usage` each chunk has `usage: null`, as OpenAI's do, or the usage so far.
    """
    envelope = Envelope(formatter.head)

    def event(index: int, output: TokenOutput) -> bytes:
        counter.add(index, output)
        return envelope.event(formatter.choice(index, output), _usage_so_far(counter, options))

    async with aclosing(outputs):
        async for batch in outputs:
            yield b"".join([event(*one) for one in batch])
    if options.include_usage:
        yield envelope.event(None, {"usage": formatter.usage(counter.usage())})


def _usage_so_far(counter: UsageCounter, options: StreamOptions) -> JSON:
    if options.continuous_usage_stats:
        return {"usage": counter.usage()}
    return {"usage": None} if options.include_usage else {}
