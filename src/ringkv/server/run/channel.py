"""EngineChannel: the server's interface to an engine in another process."""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from ringkv.base.engine import Limits
from ringkv.base.events import Event
from ringkv.base.kv import KVChoice
from ringkv.base.messages import EngineMetrics, KeptTokens, Slots, Stats
from ringkv.base.request import Request


class EngineChannel(Protocol):
    """`EngineClient` and `Supervisor` of `worker` implement it, and describe it; tests have one in their process."""

    limits: Limits
    default_kv: KVChoice
    restarts: int  # times that the engine was started again

    @property
    def alive(self) -> bool: ...

    def submit(self, groups: Sequence[Sequence[Request]]) -> AsyncGenerator[Sequence[Event], None]: ...

    def cancel(self, request_id: str) -> None: ...

    def stats(self) -> Stats: ...

    def metrics(self) -> EngineMetrics: ...

    def watch(self, on: bool) -> None: ...

    def slots(self) -> Slots: ...

    async def kept(self, name: str) -> KeptTokens | None: ...
