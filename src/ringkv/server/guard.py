"""Guard: middleware that decides which requests reach the endpoints. It checks in the order of what a check costs.

Head, host and key are checked before the body is read, so strangers cost neither memory nor a place.
"""

from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from ringkv.server.bodies import WITHOUT_BODY, Bodies, BodyLimits
from ringkv.server.errors import Disconnected
from ringkv.server.heads import check_head
from ringkv.server.hosts import check_host
from ringkv.server.keys import CALLER, NO_KEYS, ApiKeys
from ringkv.server.rate import RateLimit


@dataclass(frozen=True)
class Access:
    """Who may send requests, and how many and how large.

    hosts: names that `Host` may have; None accepts any. per_minute: requests with a body of each key; None is no limit.
    """

    keys: ApiKeys = NO_KEYS
    hosts: frozenset[str] | None = None
    per_minute: int | None = None
    bodies: BodyLimits = BodyLimits()  # noqa: RUF009 - frozen


OPEN_ACCESS = Access()


class Guard:
    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access
        self._rate = RateLimit(access.per_minute) if access.per_minute else None
        self._bodies = Bodies(access.bodies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        check_head(scope)
        check_host(scope, self._access.hosts)
        caller = scope[CALLER] = self._access.keys.identify(scope)
        if self._rate and scope["method"] not in WITHOUT_BODY:
            self._rate.take(caller.label)
        try:
            async with self._bodies.read(scope, receive) as body:
                await self._app(scope, body, send)
        except Disconnected:  # nobody is left to answer
            pass
