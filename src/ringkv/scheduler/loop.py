"""Loop: does what a scheduler decides, on an engine. The server's engine process and `LLM` run the same one.

    loop = Loop(engine)
    loop.submit(request)
    while not loop.idle:
        for event in loop.step(): ...

Events of a step come back before the next step feeds its tokens: nobody waits for a forward pass to see a token.
"""

import logging
from collections.abc import Mapping, Sequence

from ringkv.base.engine import Engine, PrefillChunk
from ringkv.base.events import Event, Scored, Usage
from ringkv.base.failure import failure_of
from ringkv.base.guide import MakeGuide
from ringkv.base.messages import Stats
from ringkv.base.request import Request
from ringkv.scheduler.actions import Action, Begin, Decode, Forward, Idle, Insert, Outcome, Prefill
from ringkv.scheduler.guided import Guided
from ringkv.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)


class Loop:
    """An engine and the scheduler of its requests; call it from one thread."""

    def __init__(self, engine: Engine, scheduler: Scheduler | None = None, guide: MakeGuide | None = None) -> None:
        """`guide` makes the guides of requests that have a grammar, in a thread of its own."""
        self._engine = engine
        self._guided = Guided(guide)
        self._scheduler = scheduler or Scheduler(engine.limits, engine.default_kv)

    @property
    def idle(self) -> bool:
        """True when a step would do nothing."""
        return self._scheduler.idle

    def stats(self) -> Stats:
        return self._scheduler.stats()

    def prefilled(self, request_id: str) -> int:
        """Prompt tokens done of a request being served; 0 for one that is unknown or over."""
        return self._scheduler.prefilled(request_id)

    def usage(self, request_id: str) -> Usage | None:
        """What a request being served holds by now; None for one that is unknown or over."""
        return self._scheduler.usage(request_id)

    def submit(self, request: Request, *others: Request) -> list[Event]:
        """Queue a request, or say why it fails; a grammar that cannot be used is told in a later step.

        `others` have the same prompt, which is prefilled once for all. Raises `InvalidRequest` for an id in use: no
        event could name it.
        """
        self._scheduler.submit(request, *others)
        return [event for one in (request, *others) for event in self._admit(one)]

    def cancel(self, request_id: str) -> list[Event]:
        """End a request wherever it is; one that is unknown or over is left alone."""
        return self._settle(self._scheduler.cancel(request_id))

    def step(self) -> list[Event]:
        """Do one thing: a prompt's beginning, a prefill chunk, an insertion, a sampling step, or a forward pass.

        Where all there is waits for its guide, wait a moment. An error in one request's prefill ends that request; one
        in a step, which all share, is raised, and the engine is not to be used again.
        """
        return [*self._released(), *self._do(self._scheduler.next())]

    def _do(self, action: Action) -> list[Event]:
        match action:
            case Begin(request, lane):
                return self._begin(request, lane)
            case Prefill(work, slot):
                return self._prefill(work, slot)
            case Insert(request, lane, slot):
                return self._insert(request, lane, slot)
            case Decode(owners, forced):
                return self._decode(owners, forced)
            case Forward(drafts):
                self._engine.forward(drafts)
            case Idle():
                self._guided.wait()
        return []

    def _released(self) -> list[Event]:
        """Let those go on whose guides are there; those whose guides cannot be made end here."""
        events: list[Event] = []
        for name, error in self._guided.take_made():
            if error is None:
                self._scheduler.release(name)
            else:
                events += self._settle(self._scheduler.failed(name, failure_of(name, error)))
        return events

    def _decode(self, owners: Sequence[str | None], forced: Mapping[int, int]) -> list[Event]:
        """Those whose guide has failed are sampled for as well, and nobody takes it."""
        allowed = self._guided.allowed(owners, forced, self._scheduler.left)
        events = [event for one in allowed.failures.items() for event in self._settle(self._scheduler.failed(*one))]
        runs = self._engine.sample(forced, allowed.tokens).read()
        events += self._settle(self._scheduler.sampled(owners, runs))
        self._guided.take(events, (owners[slot] for slot in forced))
        return events

    def _admit(self, request: Request) -> list[Event]:
        try:
            self._engine.admit(request)
            if self._guided.begin(request):
                self._scheduler.hold(request.id)
        except Exception as error:
            return self._fail(request, error)
        return []

    def _begin(self, request: Request, lane: int) -> list[Event]:
        try:
            cached = self._engine.begin(request, lane)
        except Exception as error:
            return self._fail_all(request, error)
        self._scheduler.begun(request, cached)
        return []

    def _prefill(self, work: PrefillChunk, slot: int) -> list[Event]:
        try:
            logprobs = self._engine.prefill(work)
        except Exception as error:
            return self._fail_all(work.request, error)
        scored: list[Event] = [Scored(one, logprobs) for one in self._scheduler.sharing(work.request) if logprobs]
        if not work.is_last:
            return scored
        self._scheduler.prefilled_whole(work)
        return scored + self._insert(work.request, work.lane, slot)

    def _insert(self, request: Request, lane: int, slot: int) -> list[Event]:
        try:
            layouts = self._engine.compress(lane, request.kv or self._engine.default_kv)
            self._engine.insert(lane, slot, request)
        except Exception as error:
            return self._fail(request, error)
        self._scheduler.inserted(request.id, layouts)
        return []

    def _fail(self, request: Request, error: Exception) -> list[Event]:
        return self._settle(self._scheduler.failed(request.id, failure_of(request.id, error)))

    def _fail_all(self, request: Request, error: Exception) -> list[Event]:
        """All that wait for this one's prompt."""
        failure, all_ = failure_of(request.id, error), self._scheduler.sharing(request)
        return [event for one in all_ for event in self._settle(self._scheduler.failed(one, failure))]

    def _settle(self, outcome: Outcome) -> list[Event]:
        for slot, seen in outcome.freed:
            if seen:
                self._leave(slot, seen)
            self._engine.release(slot)
        return self._guided.end(outcome.events)

    def _leave(self, slot: int, seen: tuple[int, ...]) -> None:
        """A conversation that cannot be remembered harms nobody else."""
        try:
            self._engine.leave(slot, seen)
        except Exception as error:
            log.error("what a conversation left cannot be remembered", exc_info=error)
