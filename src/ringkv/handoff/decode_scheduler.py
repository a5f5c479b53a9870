"""DecodeScheduler: a scheduler whose prompts are prefilled by another worker.

A prompt gets its slot before it is requested, so no prefix arrives without a place. As many may be requested as there
are slots. A place in the queue of requested prompts takes the part of a lane.
"""

from dataclasses import replace
from typing import NamedTuple

from ringkv.base.engine import Cached, Limits
from ringkv.base.kv import KVChoice, Layouts
from ringkv.base.request import Request
from ringkv.scheduler.actions import Begin, Prefill
from ringkv.scheduler.scheduler import Scheduler


class Reserved(NamedTuple):
    """What a request has before its prefix arrives."""

    request: Request
    slot: int
    lane: int


class DecodeScheduler(Scheduler):
    def __init__(self, limits: Limits, default_kv: KVChoice) -> None:
        held = limits.staging_bytes + limits.slots * limits.slot_bytes  # without a prefix store
        super().__init__(
            replace(limits, lanes=limits.slots, staged_entries=0, held_bytes=held, packs=False, rides=False), default_kv
        )

    def submit(self, request: Request, *others: Request) -> None:
        """Queue requests. Each is requested alone; the prefill worker lets equal prompts share a prefill."""
        self._check(request, *others)
        for one in (request, *others):
            self._queue(one)

    @property
    def may_insert(self) -> bool:
        """Whether a prefix may be inserted now: not before the tokens sampled last are fed, since all slots are fed."""
        return not (self._forward_is_due and self._running)

    def reserved(self, request_id: str) -> Reserved:
        """Return what a requested prompt has."""
        job = self._jobs[request_id]
        assert job.slot is not None
        assert job.prompt.lane is not None
        return Reserved(job.request, job.slot, job.prompt.lane)

    def arrived(self, request_id: str, layouts: Layouts, cached: int) -> None:
        """Report that a prefix is in its slot. cached: prompt tokens that needed no prefill."""
        self._forward_is_due &= bool(self._running)  # all that were sampled may have ended
        prompt = self._jobs[request_id].prompt
        prompt.begin(Cached(cached, cached))
        self.prefilled_tokens += prompt.length - cached
        self.inserted(request_id, layouts)

    def _stage(self, begin: Begin | None, feed: bool) -> Begin | Prefill | None:
        """Return the request for a prompt. There is nothing else to do for it here."""
        return begin
