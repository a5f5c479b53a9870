"""EngineChannel: what the server needs of an engine that lives elsewhere."""

from collections.abc import AsyncGenerator
from typing import Protocol

from ringkv.base.engine import Limits
from ringkv.base.events import Event
from ringkv.base.kv import KVChoice
from ringkv.base.messages import Stats
from ringkv.base.request import Request


class EngineChannel(Protocol):
    """`worker.client.EngineClient` is one; tests have a toy."""

    limits: Limits
    default_kv: KVChoice

    @property
    def alive(self) -> bool: ...

    def submit(self, *requests: Request) -> AsyncGenerator[Event, None]:
        """The events of requests with one prompt, each one's last being Finished or Failed; closing it cancels them."""
        ...

    def cancel(self, request_id: str) -> None:
        """End a request; its stream gets Finished with reason "abort". One that is unknown or over is left alone."""
        ...

    def stats(self) -> Stats: ...
