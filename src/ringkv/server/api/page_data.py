"""GET /ringkv/live, /ringkv/kept/ID and /ringkv/history: what the web page shows of the caches and of the last hour."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Response
from fastapi import Request as HTTPRequest
from pydantic import BeforeValidator

from ringkv.base.errors import InvalidRequest, UnknownRequest
from ringkv.base.messages import KeptTokens
from ringkv.server.api.documents import EVENTS, Document, errors
from ringkv.server.protocol.drain import Drain
from ringkv.server.protocol.keys import caller_of
from ringkv.server.protocol.stream import EventStream
from ringkv.server.run.requests import first_request
from ringkv.server.run.serving import Models
from ringkv.server.watch.history import Histories
from ringkv.server.watch.live import Live

Place = Annotated[int | None, BeforeValidator(lambda sent: sent or None)]
"""A number in a query; it may be empty."""
LIVE: dict[int | str, dict[str, Any]] = {200: {"content": EVENTS, "description": "The events `hello` and `tick`"}}


class SlotLayout(Document):
    """The fields of a slot in a tick of /ringkv/live that do not change while its request runs."""

    sinks: int
    selected: int
    protected: int
    base: int
    ring: int
    again: int


class Kept(Document):
    """counts: for each prompt token, how many of `of` key-value heads kept it. budget: entries of its slot."""

    id: str
    tokens: int
    layers: int
    heads: int
    of: int
    counts: list[int]
    policy: str
    budget: int
    layout: SlotLayout


class StepTimes(Document):
    """In seconds; null if there was nothing to measure."""

    p50: float | None
    p95: float | None


class Times(StepTimes):
    p99: float | None


class Point(Document):
    """Counts are of the interval before `t`, the seconds since the server's start. Requests are those of all models;
    of them the server rejected some because of load, others were invalid (status 4xx), or it failed (`errors`)."""

    t: float
    prompt_tokens: int
    output_tokens: int
    requests: int
    invalid: int
    errors: int
    rejected: int
    evicted: int
    cancelled: int
    running: int
    waiting: int
    free_slots: int
    ttft: Times
    tpot: Times
    step: StepTimes


class History(Document):
    interval: float
    now: float
    points: list[Point]


def page_data_router(models: Models, histories: Histories, drain: Drain) -> APIRouter:
    router = APIRouter()
    lives = {serving.names[0]: Live(serving, models.names, histories.clock) for serving in models}
    drain.at_begin += [live.close for live in lives.values()]

    @router.get(
        "/ringkv/live",
        summary="Follow what the slots hold",
        responses=LIVE | errors(404, 503),
        response_class=Response,
    )
    async def live(model: str | None = None) -> Response:
        """A stream of events: `hello` describes the model and its memory, then a `tick` each time that what its slots
        hold has changed, at most 4 a second and at least one in 5 seconds."""
        serving = models.find(model)
        drain.check()
        return EventStream(lives[serving.names[0]].events(), done=b"")

    @router.get("/ringkv/kept/{id}", summary="Count which prompt tokens were kept", responses=errors(400, 404))
    async def kept(id: str, http: HTTPRequest, layer: Place = None, head: Place = None) -> Kept:
        """By how many layers and heads each prompt token of an answer was kept. It must have been requested with
        `kv_trace` and the same API key, and be one of the model's last 8 such requests."""
        tokens = await _kept(models, id, caller_of(http.scope).label)
        rows = rows_of(tokens.heads, layer, head)
        return Kept(
            id=id,
            tokens=tokens.tokens,
            layers=len(tokens.heads),
            heads=max(tokens.heads),
            of=len(rows),
            counts=await asyncio.to_thread(counts, tokens, rows),
            policy=tokens.policy,
            budget=tokens.layout.capacity,
            layout=SlotLayout.model_validate(tokens.layout, from_attributes=True),
        )

    @router.get("/ringkv/history", summary="Review the last hour", responses=errors(404))
    async def history(model: str | None = None) -> History:
        """What the server did in each 5 seconds of the last hour, the oldest first. Times are in seconds."""
        return History.model_validate(histories.of(models.find(model).names[0]))

    return router


async def _kept(models: Models, id: str, owner: str) -> KeptTokens:
    """Return what a model remembers of an answer. Raises UnknownRequest, also if another key requested it."""
    name = first_request(id)
    for serving in models:
        tokens = await serving.engine.kept(name)
        if tokens is not None and tokens.owner == owner:
            return tokens
    raise UnknownRequest(
        f"nothing is remembered of a request {id:.100}; send it with kv_trace true, and ask while it is one of the "
        "last 8"
    )


def rows_of(heads: Sequence[int], layer: int | None, head: int | None) -> list[int]:
    """Return the rows of a layer or a head, or of both, from the heads of each layer. None takes all of them.

    Raises InvalidRequest.
    """
    _check("layer", layer, len(heads))
    _check("head", head, max(heads) if layer is None else heads[layer])
    places = ((layer_index, index) for layer_index, count in enumerate(heads) for index in range(count))
    return [row for row, place in enumerate(places) if layer in (None, place[0]) and head in (None, place[1])]


def _check(name: str, value: int | None, count: int) -> None:
    if value is not None and not 0 <= value < count:
        raise InvalidRequest(f"{name} is {value}; send 0 to {count - 1}, or leave it out for all", name)


def counts(kept: KeptTokens, rows: Sequence[int]) -> list[int]:
    """Return for each of the n tokens how many of these rows keep it."""
    if kept.bits is None:
        return [len(rows)] * kept.tokens
    import numpy as np  # not loaded before somebody asks

    bits = np.frombuffer(kept.bits, np.uint8).reshape(sum(kept.heads), -1)
    totals = np.zeros(kept.tokens, np.int64)
    for row in rows:
        totals += np.unpackbits(bits[row], count=kept.tokens)
    return [int(count) for count in totals]
