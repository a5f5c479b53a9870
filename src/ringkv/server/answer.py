"""From pieces to an HTTP answer, whole or streamed; chats and completions differ in their `Form` only."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from fastapi import Request as HTTPRequest
from fastapi import Response
from fastapi.responses import JSONResponse

from ringkv.base.request import Request
from ringkv.server.best import best
from ringkv.server.disconnect import until_disconnected
from ringkv.server.generation import Piece, Pieces, Telling, generate, merge
from ringkv.server.middleware import ARRIVED
from ringkv.server.request_log import TALLY
from ringkv.server.schemas import ChoicesBody, StreamOptions
from ringkv.server.serving import Serving
from ringkv.server.stream import EventStream
from ringkv.server.usage import Tally
from ringkv.text.stream import TextStream

JSON = dict[str, Any]


class Form(Protocol):
    """How one endpoint words its answers. continues: they are read right after their prompt."""

    @property
    def continues(self) -> bool: ...

    def whole(self, choices: Sequence[Sequence[Piece]], usage: JSON) -> JSON:
        """The answer, of all its finished choices."""
        ...

    def chunk(self, index: int, piece: Piece) -> JSON:
        """What one piece adds to a choice."""
        ...

    def last(self, usage: JSON) -> JSON:
        """The chunk that has the usage alone."""
        ...


async def answer(
    serving: Serving, http: HTTPRequest, body: ChoicesBody, asked: Sequence[Sequence[Request]], form: Form
) -> Response:
    """Run all requests together: for each prompt those that answer it, one choice each."""
    pieces, tally = start(serving, http, asked, form.continues)
    if body.stream:
        return EventStream(chunks(pieces, form, tally, body.stream_options or StreamOptions()))
    work = whole(pieces, form, tally, sum(map(len, asked)), body)
    return JSONResponse(await until_disconnected(http.receive, work))


def start(
    serving: Serving, http: HTTPRequest, asked: Sequence[Sequence[Request]], continues: bool
) -> tuple[Pieces, Tally]:
    """What the engine will say, numbered by choice. continues: it is read right after its prompt."""

    def telling(request: Request, is_first: bool) -> Telling:
        detokenizer, sampling = serving.tokenizer.detokenizer(continues=continues), request.sampling
        transcript = TextStream(detokenizer, sampling.stop, sampling.min_tokens)
        meter = serving.metrics.meter(http.scope[ARRIVED], is_first)
        return Telling(request, transcript, meter)

    serving.metrics.submitted(prompt_tokens := sum(len(group[0].tokens) for group in asked))
    streams = [generate(serving.engine, [telling(one, one is group[0]) for one in group]) for group in asked]
    each = len(asked[0])
    tally = http.scope[TALLY] = Tally(prompt_tokens, each)
    return merge(streams, each), tally


async def whole(pieces: Pieces, form: Form, tally: Tally, count: int, body: ChoicesBody) -> JSON:
    choices: list[list[Piece]] = [[] for _ in range(count)]
    async with aclosing(pieces):
        async for index, piece in pieces:
            tally.add(index, piece)
            choices[index].append(piece)
    return form.whole(best(choices, body), tally.usage())


async def chunks(
    pieces: Pieces, form: Form, tally: Tally, options: StreamOptions
) -> AsyncGenerator[Mapping[str, Any], None]:
    """One chunk a piece. With usage asked for, the others say `usage: null`, as OpenAI's do, or the usage so far."""
    async with aclosing(pieces):
        async for index, piece in pieces:
            tally.add(index, piece)
            yield form.chunk(index, piece) | _usage_so_far(tally, options)
    if options.include_usage:
        yield form.last(tally.usage())


def _usage_so_far(tally: Tally, options: StreamOptions) -> JSON:
    if options.continuous_usage_stats:
        return {"usage": tally.usage()}
    return {"usage": None} if options.include_usage else {}
