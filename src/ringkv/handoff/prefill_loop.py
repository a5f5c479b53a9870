"""PrefillLoop: the loop of a prefill worker. It stages, compresses and inserts prompts, and samples nothing."""

from collections.abc import Callable
from time import monotonic

from ringkv.base.engine import Engine, Packet
from ringkv.base.events import Event, Failed
from ringkv.base.request import Request
from ringkv.handoff.prefill_scheduler import PrefillScheduler
from ringkv.handoff.resting_loop import RestingLoop
from ringkv.scheduler.stopwatch import Clock


class PrefillLoop(RestingLoop):
    """prefilled: called with a request's id and slot once its prefix is in the slot, where it stays until `leave`."""

    def __init__(self, engine: Engine, prefilled: Callable[[str, int], None], clock: Clock = monotonic) -> None:
        self._prompts = PrefillScheduler(engine.limits, engine.default_kv)
        super().__init__(engine, self._prompts, None, clock)
        self._on_prefilled = prefilled

    def cached(self, request_id: str) -> int:
        """Return the prompt tokens of a request that needed no prefill."""
        usage = self._prompts.usage(request_id)
        return usage.cached_tokens if usage else 0

    def export(self, slot: int) -> Packet:
        """Return the prefix in a slot."""
        return self._engine.export(slot)

    def leave(self, request_id: str) -> None:
        """End a request at any stage, and free its slot."""
        self._settle(self._prompts.leave(request_id))

    def _insert(self, request: Request, lane: int, slot: int) -> list[Event]:
        events = super()._insert(request, lane, slot)
        if not any(isinstance(event, Failed) for event in events):
            self._on_prefilled(request.id, slot)
        return events
