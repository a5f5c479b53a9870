"""From pieces to an HTTP answer, whole or streamed; the two endpoints differ in their `Form` only."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from fastapi import Request as HTTPRequest
from fastapi import Response
from fastapi.responses import JSONResponse

from ringkv.base.request import Request
from ringkv.server.disconnect import until_disconnected
from ringkv.server.generation import Piece, generate, merge
from ringkv.server.middleware import ARRIVED
from ringkv.server.schemas import GenerationBody, StreamOptions
from ringkv.server.serving import Serving
from ringkv.server.stream import EventStream
from ringkv.server.usage import Tally
from ringkv.text.stream import TextStream

JSON = dict[str, Any]
Pieces = AsyncGenerator[tuple[int, Piece], None]


class Form(Protocol):
    """How one endpoint words its answers. continues: they are read right after their prompt."""

    @property
    def continues(self) -> bool: ...

    def whole(self, choices: Sequence[JSON], usage: JSON) -> JSON: ...

    def chunk(self, choices: Sequence[JSON]) -> JSON: ...

    def choice(self, index: int, pieces: Sequence[Piece]) -> JSON:
        """One finished choice."""
        ...

    def delta(self, index: int, piece: Piece) -> JSON:
        """What one piece adds to a choice."""
        ...


async def answer(
    serving: Serving, http: HTTPRequest, body: GenerationBody, requests: Sequence[Request], form: Form
) -> Response:
    """Run all requests together, one choice each."""
    pieces = merge([_generate(serving, http, request, form) for request in requests])
    tally = Tally(sum(len(request.tokens) for request in requests[:: body.n or 1]), body.n or 1)
    if body.stream:
        return EventStream(chunks(pieces, form, tally, body.stream_options or StreamOptions()))
    work = whole(pieces, form, tally, len(requests))
    return JSONResponse(await until_disconnected(http.receive, work))


def _generate(serving: Serving, http: HTTPRequest, request: Request, form: Form) -> AsyncGenerator[Piece, None]:
    detokenizer = serving.tokenizer.detokenizer(continues=form.continues)
    transcript = TextStream(detokenizer, request.sampling.stop)
    return generate(serving.engine, request, transcript, serving.metrics.meter(http.scope[ARRIVED]))


async def whole(pieces: Pieces, form: Form, tally: Tally, count: int) -> JSON:
    choices: list[list[Piece]] = [[] for _ in range(count)]
    async with aclosing(pieces):
        async for index, piece in pieces:
            tally.add(index, piece)
            choices[index].append(piece)
    return form.whole([form.choice(index, choice) for index, choice in enumerate(choices)], tally.usage())


async def chunks(
    pieces: Pieces, form: Form, tally: Tally, options: StreamOptions
) -> AsyncGenerator[Mapping[str, Any], None]:
    """One chunk a piece. With usage asked for, the others say `usage: null`, as OpenAI's do, or the usage so far."""
    async with aclosing(pieces):
        async for index, piece in pieces:
            tally.add(index, piece)
            yield form.chunk([form.delta(index, piece)]) | _usage_so_far(tally, options)
    if options.include_usage:
        yield form.chunk([]) | {"usage": tally.usage()}


def _usage_so_far(tally: Tally, options: StreamOptions) -> JSON:
    if options.continuous_usage_stats:
        return {"usage": tally.usage()}
    return {"usage": None} if options.include_usage else {}
