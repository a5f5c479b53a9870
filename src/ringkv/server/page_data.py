"""GET /ringkv/live, /ringkv/kept/ID and /ringkv/history: what the web page shows of the caches and of the last hour."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Response
from fastapi import Request as HTTPRequest
from pydantic import BeforeValidator

from ringkv.base.errors import UnknownRequest
from ringkv.base.messages import KeptTokens
from ringkv.server.documents import EVENTS, History, Kept, SlotLayout, errors
from ringkv.server.drain import Drain
from ringkv.server.history import Histories
from ringkv.server.kept_counts import counts, rows_of
from ringkv.server.keys import caller_of
from ringkv.server.live import Live
from ringkv.server.requests import first_request
from ringkv.server.serving import Models
from ringkv.server.stream import EventStream

Place = Annotated[int | None, BeforeValidator(lambda sent: sent or None)]
"""A number in a query; it may be empty."""
LIVE: dict[int | str, dict[str, Any]] = {200: {"content": EVENTS, "description": "The events `hello` and `tick`"}}


def page_data_router(models: Models, histories: Histories, drain: Drain) -> APIRouter:
    router = APIRouter()
    lives = {serving.names[0]: Live(serving, models.names, histories.clock) for serving in models}
    drain.at_begin += [live.close for live in lives.values()]

    @router.get("/ringkv/live", responses=LIVE | errors(404, 503), response_class=Response)
    async def live(model: str | None = None) -> Response:
        """A stream of events: `hello` describes the model and its memory, then a `tick` each time that what its slots
        hold has changed, at most 4 a second and at least one in 5 seconds."""
        serving = models.find(model)
        drain.check()
        return EventStream(lives[serving.names[0]].events(), done=b"")

    @router.get("/ringkv/kept/{id}", responses=errors(400, 404))
    async def kept(id: str, http: HTTPRequest, layer: Place = None, head: Place = None) -> Kept:
        """By how many layers and heads each prompt token of an answer was kept. It must have been requested with
        `kv_trace` and the same API key, and be one of the model's last 8 such requests."""
        found = await _found(models, id, caller_of(http.scope).label)
        rows = rows_of(found.heads, layer, head)
        return Kept(
            id=id,
            tokens=found.tokens,
            layers=len(found.heads),
            heads=max(found.heads),
            of=len(rows),
            counts=await asyncio.to_thread(counts, found, rows),
            policy=found.policy,
            budget=found.layout.capacity,
            layout=SlotLayout.model_validate(found.layout, from_attributes=True),
        )

    @router.get("/ringkv/history", responses=errors(404))
    async def history(model: str | None = None) -> History:
        """What the server did in each 5 seconds of the last hour, the oldest first. Times are in seconds."""
        return History.model_validate(histories.of(models.find(model).names[0]))

    return router


async def _found(models: Models, id: str, owner: str) -> KeptTokens:
    """Return what a model remembers of an answer. Raises UnknownRequest, also if another key requested it."""
    name = first_request(id)
    for serving in models:
        found = await serving.engine.kept(name)
        if found is not None and found.owner == owner:
            return found
    raise UnknownRequest(
        f"nothing is remembered of a request {id:.100}; send it with kv_trace true, and ask while it is one of the "
        "last 8"
    )
