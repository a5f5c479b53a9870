"""Drain: how a server stops. It takes no new work, and finishes what it has accepted.

Work is a POST request. It is accepted when its headers have arrived. A request that comes later gets `Draining`, a 503.
Other requests, such as probes and metrics, are answered until the end.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import ceil
from time import monotonic

from starlette.types import ASGIApp, Receive, Scope, Send

from ringkv.base.errors import Draining


class Drain:
    """Counts the work that runs, and refuses more once `begin` was called."""

    def __init__(self) -> None:
        self.running = 0
        self.at_begin: list[Callable[[], object]] = []  # called by `begin`, perhaps more than once
        self.at_end: list[Callable[[], object]] = []  # called by `finished`, perhaps more than once
        self._deadline: float | None = None
        self._idle = asyncio.Event()

    @property
    def has_begun(self) -> bool:
        return self._deadline is not None

    def begin(self, seconds: float) -> None:
        """Refuse work from now on. What runs gets so many seconds to finish."""
        self._deadline = monotonic() + seconds
        for act in self.at_begin:
            act()
        if not self.running:
            self._idle.set()

    async def finished(self) -> None:
        """Wait until nothing runs, or until the deadline. Call it after `begin`."""
        assert self._deadline is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(self._deadline - monotonic()):
                await self._idle.wait()
        for act in self.at_end:
            act()

    def check(self) -> None:
        """Raise `Draining` if `begin` was called."""
        if self._deadline is not None:
            raise Draining(
                "the server is stopping and takes no new requests; send it to another server, or again later",
                max(1, ceil(self._deadline - monotonic())),
            )

    @contextmanager
    def work(self) -> Iterator[None]:
        """Count one request while the block runs. Raises `Draining`."""
        self.check()
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            if self.has_begun and not self.running:
                self._idle.set()


class CountWork:
    """Middleware that runs each POST request as work of a drain."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app, self._drain = app, drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        with self._drain.work():
            await self._app(scope, receive, send)
