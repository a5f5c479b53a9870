"""PrefillScheduler: a scheduler whose requests leave once their prompt is in a slot."""

from ringkv.base.engine import Limits
from ringkv.base.events import Finished
from ringkv.base.kv import KVChoice, Layouts
from ringkv.scheduler.actions import Freed, Outcome
from ringkv.scheduler.job import Job
from ringkv.scheduler.scheduler import Scheduler


class PrefillScheduler(Scheduler):
    """No request runs, so nothing bounds a pass. A request keeps its slot until `leave`."""

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
