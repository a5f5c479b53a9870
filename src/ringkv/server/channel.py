"""EngineChannel: the server's interface to an engine in another process."""

from collections.abc import AsyncGenerator
from typing import Protocol

from ringkv.base.engine import Limits
from ringkv.base.events import Event
from ringkv.base.kv import KVChoice
from ringkv.base.messages import EngineMetrics, Stats
from ringkv.base.request import Request


class EngineChannel(Protocol):
    """`EngineClient` and `Supervisor` of `worker` implement it; tests have one inside the process."""

    limits: Limits
    default_kv: KVChoice
    restarts: int  # times that the engine was started again

    @property
    def alive(self) -> bool: ...

    def submit(self, *requests: Request) -> AsyncGenerator[Event, None]:
        """Yield the events of requests that share one prompt. Each request's last event is Finished or Failed.

        Closing the generator cancels the requests. Raises `EngineDied` if the engine ends meanwhile, and
        `EngineRestarting` if there is none now.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """End a request; its stream gets Finished with reason "abort". Unknown and finished requests are ignored."""
        ...

    def stats(self) -> Stats: ...

    def metrics(self) -> EngineMetrics: ...
