"""EngineChannel: the server's interface to an engine in another process."""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from ringkv.base.engine import Limits
from ringkv.base.events import Event
from ringkv.base.kv import KVChoice
from ringkv.base.messages import EngineMetrics, KeptTokens, Slots, Stats
from ringkv.base.request import Request


class EngineChannel(Protocol):
    """`EngineClient` and `Supervisor` of `worker` implement it; tests have one inside the process."""

    limits: Limits
    default_kv: KVChoice
    restarts: int  # times that the engine was started again

    @property
    def alive(self) -> bool: ...

    def submit(self, groups: Sequence[Sequence[Request]]) -> AsyncGenerator[Sequence[Event], None]:
        """Yield the events of requests as they arrive, several at a time. Each request's last is Finished or Failed.

        The requests of a group share one prompt. Closing the generator cancels the requests. Raises `EngineDied` if the
        engine ends meanwhile, `EngineRestarting` if there is none now, and `TooSlow`, after it has cancelled the
        requests, if too many events wait to be read.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """End a request; its stream gets Finished with reason "abort". Unknown and finished requests are ignored."""
        ...

    def stats(self) -> Stats: ...

    def metrics(self) -> EngineMetrics: ...

    def watch(self, on: bool) -> None:
        """Let the engine say what its slots hold, or no longer."""
        ...

    def slots(self) -> Slots:
        """Return what the engine holds, at most a second old; nothing unless it is watched."""
        ...

    async def kept(self, name: str) -> KeptTokens | None:
        """Return which prompt tokens a request with `trace` kept; None if the engine does not remember it.

        name: its id, without that of the HTTP request. Raises `EngineDied` if the engine ends meanwhile.
        """
        ...
