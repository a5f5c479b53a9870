"""Loop: runs a scheduler's actions on an engine. The server's engine process and `LLM` use the same loop.

    loop = Loop(engine)
    loop.submit(request)
    while not loop.idle:
        for event in loop.step(): ...

A step returns its events before the next step feeds its tokens, so no token waits for the forward pass after it.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import NamedTuple

from ringkv.base.engine import Cached, Engine, PrefillChunk
from ringkv.base.events import Event, Failed, Finished, Scored, TokenLogprob
from ringkv.base.failure import Failure, failure_of
from ringkv.base.guide import MakeGuide
from ringkv.base.kv import Layouts
from ringkv.base.messages import EngineMetrics, KeptTokens, Stats
from ringkv.base.request import Request
from ringkv.scheduler.actions import Action, Begin, Decode, Forward, Idle, Insert, Outcome, Prefill
from ringkv.scheduler.guided import Guided
from ringkv.scheduler.scheduler import Scheduler
from ringkv.scheduler.stopwatch import Clock, Stopwatch
from ringkv.scheduler.traces import Traces

log = logging.getLogger(__name__)


class Selecting(NamedTuple):
    """An insertion that has begun. parts: of it that are left. since: when it began."""

    request_id: str
    parts: Iterator[None]
    since: float


Park = Callable[[str, int], None]


class Loop:
    """An engine and the scheduler of its requests; call it from one thread.

    A subclass may let another process prefill: it overrides `begin` and `insert`, passes a scheduler that does not
    prefill, and calls `arrived`. wakers: descriptors that are readable once an idle loop has something to do.
    """

    wakers: tuple[int, ...] = ()

    def __init__(
        self,
        engine: Engine,
        scheduler: Scheduler | None = None,
        guide: MakeGuide | None = None,
        clock: Clock = monotonic,
        park: Park | None = None,
    ) -> None:
        """guide: makes the guides of requests with a grammar. It is called in a separate thread.

        park: called with a request's id and slot once its prompt is in the slot, where it then stays until `cancel`.
        Without it the request is decoded.
        """
        self.engine = engine
        self._guided = Guided(guide)
        self.scheduler = scheduler or Scheduler(engine.limits, engine.default_kv, decodes=park is None)
        self._park = park
        self._rests = False  # the last step had nothing to do, and nothing was submitted or has ended since
        self._watch = Stopwatch(clock)
        self._inserted: dict[str, int] = {}  # slots by request
        self._selecting: Selecting | None = None
        self._traces = Traces(engine.limits.heads)

    @property
    def idle(self) -> bool:
        """True if a step would do nothing: there are no requests, or another process has to act on all of them."""
        return self.scheduler.idle or (self._rests and not self._guided.pending)

    @property
    def patience(self) -> float | None:
        """Seconds after which an idle loop's `step` must be called in any case: a request then ends. None: never."""
        deadline = min(self.scheduler.deadlines.values(), default=None)
        return None if deadline is None else max(0.0, deadline - self._watch.now())

    def stats(self) -> Stats:
        return self.scheduler.stats()

    def metrics(self) -> EngineMetrics:
        scheduler = self.scheduler
        return replace(self._watch.metrics, not_finite=scheduler.not_finite, prefilled=scheduler.prefilled_tokens)

    def kept(self, name: str) -> KeptTokens | None:
        """Return which prompt tokens a request with `trace` kept; None if it is unknown or was too long ago."""
        return self._traces.find(name)

    def submit(self, request: Request, *others: Request) -> list[Event]:
        """Queue a request. Returns Failed if it is refused; an unusable grammar fails in a later step.

        `others` have the same prompt, which is prefilled once. Raises `InvalidRequest` for an id in use: an event would
        name the wrong request.
        """
        self.scheduler.submit(request, *others)
        self._rests = False
        for each in (request, *others):
            self._watch.submit(each.id)
            if each.timeout is not None:
                self.scheduler.deadlines[each.id] = self._watch.now() + each.timeout
        return [event for each in (request, *others) for event in self._admit(each)]

    def cancel(self, request_id: str) -> list[Event]:
        """End a request at any stage. Does nothing for an unknown or finished request."""
        return self._settle(self.scheduler.cancel(request_id))

    def fail(self, request_id: str, failure: Failure) -> list[Event]:
        """End a request with an error. Nothing is saved of it."""
        return self._settle(self.scheduler.failed(request_id, failure))

    def arrived(self, request: Request, cached: Cached) -> None:
        """Report that another process has prefilled a prompt that was begun, and what it had cached.

        `insert` is called in this step or a later step, unless the request ends.
        """
        self._watch.prefilled(self.scheduler.arrived(request, cached))
        self._rests = False

    def begin(self, request: Request, lane: int, entries: range | None) -> Cached:
        """Begin a prompt in its lane; see `Engine.begin`. An error fails all requests that wait for the prompt."""
        return self.engine.begin(request, lane, entries)

    def select(self, request: Request, lane: int, slot: int) -> Iterator[None]:
        """Do what comes before `insert` in parts; between two of them slots are fed. An error fails the request."""
        return self.engine.select(lane, request.kv or self.engine.default_kv, slot)

    def insert(self, request: Request, lane: int, slot: int) -> Layouts:
        """Put the prompt in a lane into a slot, and return the slot's layouts. An error fails the request."""
        assert self._selecting is not None
        choice = request.kv or self.engine.default_kv
        layouts = self.engine.compress(lane, choice)
        self._watch.compressed(self._selecting.since)
        if request.trace:
            self._traces.add(request, choice, layouts, partial(self.engine.kept, lane, choice))
        self.engine.insert(lane, slot, request)
        return layouts

    def step(self) -> list[Event]:
        """Do an action: load a cached prefix, prefill a chunk, insert a prompt, sample, or run a forward pass.

        An insertion that takes longer than `Limits.max_step` is done in several actions.
        Requests whose timeout has passed end first. If all requests wait for their guides, it waits briefly.
        An error in a prefill fails the requests of all prompts in the pass. An error in a decode step or in a pass that
        feeds running requests is raised; the engine must not be used after it.
        """
        expired = self._settle(self.scheduler.expire(self._watch.now()))
        released, action = self._release_guided(), self.scheduler.next()
        self._rests = isinstance(action, Idle)
        return [*expired, *released, *self._run(action)]

    def _run(self, action: Action) -> list[Event]:
        match action:
            case Begin(request, lane, entries):
                return self._begin(request, lane, entries)
            case Prefill(work, slots, feed):
                return self._prefill(work, slots, feed)
            case Insert(request, lane, slot):
                return self._insert(request, lane, slot)
            case Decode(owners, forced):
                return self._decode(owners, forced)
            case Forward(drafts):
                since = self._watch.now()
                self.scheduler.fed(self.engine.forward(drafts))
                self._watch.fed(since)
            case Idle():
                self._guided.wait()
        return []

    def _release_guided(self) -> list[Event]:
        """Release the requests whose guides are done, and fail those whose guides could not be made."""
        events: list[Event] = []
        for name, error in self._guided.finished():
            if error is None:
                self.scheduler.hold(name, False)
            else:
                events += self.fail(name, failure_of(name, error))
        return events

    def _decode(self, owners: Sequence[str | None], forced: Mapping[int, int]) -> list[Event]:
        """Sample every slot. A request whose guide failed is sampled too; its token is discarded."""
        allowed = self._guided.allowed(owners, forced, self.scheduler.left_to_sample)
        events = [event for failure in allowed.failures.items() for event in self.fail(*failure)]
        since = self._watch.now()
        runs = self.engine.sample(forced, allowed.tokens).read()
        gap = self._watch.sampled(since)
        events += self._settle(self.scheduler.sampled(owners, runs, gap))
        self._guided.take(events, (owners[slot] for slot in forced))
        return events

    def _admit(self, request: Request) -> list[Event]:
        try:
            self.engine.admit(request)
            if self._guided.begin(request):
                self.scheduler.hold(request.id)
        except Exception as error:
            return self.fail(request.id, failure_of(request.id, error))
        return []

    def _begin(self, request: Request, lane: int, entries: range | None) -> list[Event]:
        self._watch.begin(request.id, lane)
        try:
            cached = self.begin(request, lane, entries)
        except Exception as error:
            return self._fail_all(request, error)
        self.scheduler.begun(request, cached)
        return []

    def _prefill(self, work: Sequence[PrefillChunk], slots: Sequence[int], feed: bool) -> list[Event]:
        """Run a pass. An error in a pass that feeds the slots is raised, because they cannot go on."""
        since = self._watch.now()
        try:
            logprobs = self.engine.prefill(work, feed)
        except Exception as error:
            if feed:
                raise
            return [event for chunk in work for event in self._fail_all(chunk.request, error)]
        if feed:
            self._watch.fed(since)
        chunks = zip(work, slots, logprobs, strict=True)
        return [event for chunk in chunks for event in self._prefilled(*chunk)]

    def _prefilled(self, work: PrefillChunk, slot: int, logprobs: Sequence[TokenLogprob]) -> list[Event]:
        """Report a chunk, and insert the prompt after its last chunk."""
        sharing = self.scheduler.sharing(work.request) if logprobs else ()
        scored: list[Event] = [Scored(request_id, tuple(logprobs)) for request_id in sharing]
        self.scheduler.passed(work)
        if not work.is_last:
            return scored
        self._watch.prefilled(work.lane)
        return scored + self._insert(work.request, work.lane, slot)

    def _insert(self, request: Request, lane: int, slot: int) -> list[Event]:
        """Insert a prompt, or do a part of it that takes `max_step`. It waits until another that has begun is done."""
        if self._selecting is None:
            self._selecting = Selecting(request.id, self.select(request, lane, slot), self._watch.now())
            self._watch.insert(request.id, lane)
        if self._selecting.request_id != request.id:
            return []
        try:
            if self._pauses(self._selecting.parts):
                self.scheduler.paused(request.id)
                return []
            layouts = self.insert(request, lane, slot)
        except Exception as error:
            return self.fail(request.id, failure_of(request.id, error))
        self._selecting = None
        self._inserted[request.id] = slot
        self.scheduler.inserted(request.id, layouts)
        if self._park:
            self._park(request.id, slot)
        return []

    def _pauses(self, parts: Iterator[None]) -> bool:
        """Do parts of an insertion for `max_step`, and return whether it goes on after that."""
        limit, since = self.engine.limits.max_step, self._watch.now()
        return any(limit and self._watch.now() - since >= limit for _ in parts)

    def _fail_all(self, request: Request, error: Exception) -> list[Event]:
        """Fail all requests that wait for the prompt of this request."""
        failure, sharing = failure_of(request.id, error), self.scheduler.sharing(request)
        return [event for request_id in sharing for event in self.fail(request_id, failure)]

    def _settle(self, outcome: Outcome) -> list[Event]:
        self._rests &= not outcome.events
        events = []
        for event in outcome.events:
            if self._selecting and self._selecting.request_id == event.request_id:
                self._selecting = None  # ends its parts, before the lane gets another prompt
            slot = self._inserted.pop(event.request_id, None) if isinstance(event, Finished | Failed) else None
            if slot is not None and (pages := self.engine.recalled(slot)) is not None and isinstance(event, Finished):
                event = event.with_recalled(pages)
            events.append(self._watch.timed(event))
        for slot, seen in outcome.freed:
            if seen:
                try:
                    self.engine.leave(slot, seen)
                except Exception as error:  # the request is finished
                    log.error("a conversation could not be saved for its next turn", exc_info=error)
            self.engine.release(slot)
        self._watch.end(events)
        return self._guided.end(events)
