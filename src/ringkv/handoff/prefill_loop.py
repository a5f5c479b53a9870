"""PrefillLoop: the loop of a prefill worker. It stages, compresses and inserts prompts, and samples nothing."""

from collections.abc import Callable
from time import monotonic

from ringkv.base.engine import Engine, Limits, Packet
from ringkv.base.events import Event, Failed, Finished
from ringkv.base.kv import KVChoice, Layouts
from ringkv.base.request import Request
from ringkv.handoff.resting_loop import RestingLoop
from ringkv.scheduler.actions import Freed, Outcome
from ringkv.scheduler.job import Job
from ringkv.scheduler.scheduler import Scheduler
from ringkv.scheduler.stopwatch import Clock


class PrefillScheduler(Scheduler):
    """A scheduler whose requests leave once their prompt is in a slot.

    No request runs, so nothing bounds a pass. A request keeps its slot until `leave`.
    """

    def __init__(self, limits: Limits, default_kv: KVChoice) -> None:
        super().__init__(limits, default_kv)
        self._prefilled: dict[int, Job] = {}  # by slot

    def inserted(self, request_id: str, layouts: Layouts) -> None:
        super().inserted(request_id, layouts)
        job = self._jobs[request_id]
        assert job.slot is not None
        self._prefilled[job.slot] = self._running.pop(job.slot)

    def leave(self, request_id: str) -> Outcome:
        """End a request at any stage. Nothing is saved of it beside its prompt."""
        job = self._jobs[request_id]
        end = Finished(request_id, "stop", job.usage())
        return Outcome([end], [Freed(one.slot) for one in self._leave(job)])

    def _leave(self, job: Job) -> list[Freed]:
        if job.slot is not None and self._prefilled.get(job.slot) is job:
            self._running[job.slot] = self._prefilled.pop(job.slot)  # the base takes it out of there
        return super()._leave(job)


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
