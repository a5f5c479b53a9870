"""Guard: middleware that decides which requests reach the endpoints. It checks in the order of what a check costs.

Head, host and key are checked before the body is read, so strangers cost neither memory nor a place.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from math import ceil
from time import monotonic

from starlette.types import ASGIApp, Receive, Scope, Send

from ringkv.base.errors import HeadersTooLarge, RateLimited, URLTooLong, WrongHost
from ringkv.server.protocol.bodies import WITHOUT_BODY, Bodies, BodyLimits
from ringkv.server.protocol.errors import Disconnected
from ringkv.server.protocol.keys import NO_KEYS, ApiKeys
from ringkv.server.protocol.scope import CALLER

LONGEST_URL = 8 << 10  # bytes, query included
MOST_HEADERS = 100
LARGEST_HEADERS = 32 << 10  # bytes, names included
MINUTE = 60.0  # seconds
ANY = "*"
LOCAL_NAME = "localhost"


def accepted_hosts(bound: str, extra: Sequence[str] = ()) -> frozenset[str] | None:
    """Return the names that `Host` may have, besides those of this machine; None accepts any.

    bound: the address that the server listens on. extra: names from the user; "*" accepts any.
    """
    if ANY in extra or not (extra or is_local(bound)):
        return None
    return frozenset(name.lower().rstrip(".") for name in extra)


def check_host(scope: Scope, accepted: frozenset[str] | None) -> None:
    """Raise WrongHost unless `Host` is this machine's, the address that the client reached, or an accepted name.

    It guards against DNS rebinding: a page in a browser may make its own name point to a loopback address and then read
    what a server there answers to it. Its requests have the page's name in `Host`.
    """
    if accepted is None:
        return
    name = host_name(dict(scope["headers"]).get(b"host", b"").decode("latin-1"))
    reached = (scope.get("server") or ("",))[0]
    if not (is_local(name) or name == reached or name in accepted):
        raise WrongHost(
            f"this server does not answer to the host {name[:100]!r}; use its address, or start it with --allowed-host"
        )


def is_local(name: str) -> bool:
    """Return whether a name or address is always this machine."""
    with suppress(ValueError):
        return name == LOCAL_NAME or ip_address(name).is_loopback
    return False


def host_name(host: str) -> str:
    """Return the name in a `Host` header: lower case, without port, brackets and final dot."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


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


def check_head(scope: Scope) -> None:
    """Raise URLTooLong or HeadersTooLarge."""
    length = len(scope.get("raw_path") or scope["path"].encode()) + len(scope["query_string"])
    if length > LONGEST_URL:
        raise URLTooLong(f"the URL has {length:,} bytes; this server takes {LONGEST_URL:,}")
    count, size = len(scope["headers"]), sum(len(name) + len(value) for name, value in scope["headers"])
    if count > MOST_HEADERS or size > LARGEST_HEADERS:
        raise HeadersTooLarge(
            f"the request has {count:,} headers of {size:,} bytes; this server takes {MOST_HEADERS} of "
            f"{LARGEST_HEADERS:,} bytes"
        )


class RateLimit:
    """A token bucket for each API key: `per_minute` requests a minute, and as many at once after a quiet minute.

    A server without keys has one label, so all its callers share the limit. clock: returns seconds.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = monotonic) -> None:
        self._per_minute, self._clock = per_minute, clock
        self._buckets: dict[str, tuple[float, float]] = {}  # label -> requests left, and when

    def take(self, label: str) -> None:
        """Count one request. Raises RateLimited, and then does not count it."""
        now = self._clock()
        left, since = self._buckets.get(label, (float(self._per_minute), now))
        left = min(self._per_minute, left + (now - since) * self._per_minute / MINUTE)
        if left < 1:
            seconds = max(1, ceil((1 - left) * MINUTE / self._per_minute))
            who = f"the API key {label}" if label else "this server"
            raise RateLimited(
                f"{who} has {self._per_minute:,} requests a minute, and they are used up; send it again in {seconds} s",
                seconds,
            )
        self._buckets[label] = (left - 1, now)
