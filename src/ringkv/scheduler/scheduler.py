"""Scheduler: decides what the engine does next. It has no tensors and calls no device.

    submit -> waiting -> prefilling (a slot and a staging lane are reserved) -> running (in its slot) -> last event

- Requests take slots and lanes in the order of `WaitingPrompts`: priority, the owner's share, submission. A request
  that is held, because its grammar is still being compiled, is skipped and keeps its place.
- A decode step follows each chunk or insertion if any request runs. So a running request waits for at most one of them
  between two of its tokens. A prompt's last chunk includes its first insertion. If no request runs, chunks and
  insertions follow each other directly.
- A prompt that gets a lane begins with its cached tokens and is prefilled from there.
- With several lanes the staged prompts alternate chunk by chunk, so a short prompt does not wait for a long one.
- Requests with one prompt share its prefill. The first has a slot reserved. The prompt keeps its lane until all others
  have a slot. They get slots before prompts of any owner that still wait for a lane.
- A decode step is two actions, Decode then Forward. A request that ends between them is not fed.
- Forward may carry drafts. The next Decode then returns several tokens for a slot. Only the last can end its request.
"""

from collections import Counter, deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from ringkv.base.engine import Limits, PrefillChunk, Run, Sampled
from ringkv.base.errors import InvalidRequest
from ringkv.base.events import Event, Failed, Finished, Token, Usage
from ringkv.base.failure import Failure
from ringkv.base.kv import KVChoice, Layouts
from ringkv.base.messages import Stats
from ringkv.base.request import Request
from ringkv.scheduler.actions import Action, Begin, Decode, Forward, Freed, Idle, Insert, Outcome, Prefill
from ringkv.scheduler.deadlines import Deadlines
from ringkv.scheduler.job import Job, PendingPrompt
from ringkv.scheduler.shares import Shares
from ringkv.scheduler.waiting import WaitingPrompts

_NOT_FINITE = Failure(
    "RequestFailed",
    "the model's output was not finite (NaN or infinity), so no token could be sampled; try another dtype or prompt",
)


class Scheduler:
    """The queues of requests, slots and lanes. Call it from one thread."""

    def __init__(self, limits: Limits, default_kv: KVChoice) -> None:
        self._limits = limits
        self._default_kv = default_kv
        self._jobs: dict[str, Job] = {}
        self._waiting = WaitingPrompts()
        self._staged: deque[PendingPrompt] = deque()  # being prefilled; the next one first
        self._shared: deque[PendingPrompt] = deque()  # prefilled, in their lanes for jobs without a slot
        self._running: dict[int, Job] = {}  # by slot
        self._free_slots = list(range(limits.slots))
        self._free_lanes = list(range(limits.lanes))
        heapify(self._free_slots)
        heapify(self._free_lanes)
        self._arrivals = count()
        self._shares = Shares()
        self._deadlines = Deadlines()
        self.not_finite = 0  # requests that failed because their logits were not finite
        self._decode_is_due = False  # a chunk or an insertion has run since the last decode step
        self._forward_is_due = False  # tokens were sampled and not yet fed

    @property
    def idle(self) -> bool:
        return not self._jobs

    def stats(self) -> Stats:
        running, staged = len(self._running), len(self._staged)
        waiting = len(self._jobs) - running - staged
        return Stats(waiting, staged, running, len(self._free_slots), len(self._free_lanes))

    def prefilled(self, request_id: str) -> int:
        """Return the prefilled prompt tokens of a request; 0 for one that is unknown or finished."""
        job = self._jobs.get(request_id)
        return job.prompt.prefilled if job else 0

    def usage(self, request_id: str) -> Usage | None:
        """Return the usage of a request so far; None for one that is unknown or finished."""
        job = self._jobs.get(request_id)
        return job.usage() if job else None

    def left_to_sample(self, request_id: str) -> int:
        """Return how many tokens a running request may still sample."""
        return self._jobs[request_id].left_to_sample

    def submit(self, request: Request, *others: Request) -> None:
        """Queue a request, and `others` that have the same prompt. Raises `InvalidRequest` if an id is in use."""
        prompt = PendingPrompt(owner=request.owner, priority=request.priority)
        for one in (request, *others):
            both = ((r.tokens, r.salt, r.owner, r.priority, r.sampling.prompt_logprobs) for r in (one, request))
            assert len(set(both)) == 1, "requests that are submitted together have one prompt, owner and priority"
            choices = {self._kv(one), self._kv(request)}
            assert len(choices) == 1 or all(choice.turns == "reread" for choice in choices), (
                "turns=continue needs one choice for all"
            )
            if one.id in self._jobs:
                raise InvalidRequest(f"request id {one.id!r} is in use; choose another, or wait until it ends", "id")
        for one in (request, *others):
            job = Job(one, self._kv(one), self._limits, prompt)
            self._jobs[one.id] = job
            prompt.jobs.append(job)
        prompt.arrival = next(self._arrivals)
        self._waiting.update(prompt)

    def _kv(self, request: Request) -> KVChoice:
        return request.kv or self._default_kv

    def hold(self, request_id: str) -> None:
        """Keep a request that was just submitted from taking a lane before `release`."""
        job = self._jobs[request_id]
        job.is_held = True
        self._waiting.update(job.prompt)

    def release(self, request_id: str) -> None:
        job = self._jobs[request_id]
        job.is_held = False
        self._waiting.update(job.prompt)

    def set_deadline(self, request_id: str, when: float) -> None:
        """Let a request that was just submitted end at this time, on the clock of `expire`."""
        self._deadlines.set(request_id, when)

    def expire(self, now: float) -> Outcome:
        """End the requests whose deadline has passed: with the tokens that they have, or with an error without any."""
        outcome = Outcome([], [])
        for request_id in self._deadlines.due(now):
            events, freed = self._expire(self._jobs[request_id])
            outcome.events.extend(events)
            outcome.freed.extend(freed)
        return outcome

    def cancel(self, request_id: str) -> Outcome:
        """End a request at any stage. Does nothing for one that is unknown or finished."""
        job = self._jobs.get(request_id)
        if job is None:
            return Outcome([], [])
        return Outcome([Finished(request_id, "abort", job.usage())], self._leave(job))

    def failed(self, request_id: str, failure: Failure) -> Outcome:
        """End a request with an error. Its entries are not saved for a later turn."""
        freed = [Freed(one.slot) for one in self._leave(self._jobs[request_id])]
        return Outcome([Failed(request_id, failure.kind, failure.message, failure.param)], freed)

    def next(self) -> Action:
        """Return the next action. Report its end: `begun`, `prefill_finished`, `inserted`, `sampled`, or `failed`."""
        if self._forward_is_due:
            self._forward_is_due = False
            if self._running:
                return self._forward()
        may_stall = not (self._decode_is_due and self._running)
        if may_stall and self._shared and self._free_slots:
            return self._insert()
        self._reserve()
        if may_stall and self._staged:
            return self._chunk()
        if self._running:
            return self._decode()
        return Idle()

    def sharing(self, request: Request) -> list[str]:
        """Return the requests that wait for this one's prompt."""
        return [job.request.id for job in self._jobs[request.id].prompt.jobs]

    def begun(self, request: Request, cached: int) -> None:
        """Report that `cached` tokens of its prompt were copied to its lane. If any were, a decode step is due."""
        self._jobs[request.id].prompt.begin(cached)
        self._shares.serve(request.owner, len(request.tokens) - cached)
        self._decode_is_due |= cached > 0

    def prefill_finished(self, work: PrefillChunk) -> None:
        """Report a prompt's last chunk. The prompt stays in its lane until all its requests are inserted."""
        prompt = self._jobs[work.request.id].prompt
        self._staged.remove(prompt)
        self._shared.append(prompt)

    def inserted(self, request_id: str, layouts: Layouts) -> None:
        """Report that the request's prompt is compressed and in its slot. The next decode step samples from it."""
        job = self._jobs[request_id]
        assert job.slot is not None
        job.run(layouts)
        self._running[job.slot] = job
        self._leave_prompt(job)

    def sampled(self, owners: Sequence[str | None], runs: Sequence[Run]) -> Outcome:
        """Report one run of tokens per slot. Runs whose owner ended after the step began are dropped."""
        outcome = Outcome([], [])
        for slot, (owner, run) in enumerate(zip(owners, runs, strict=True)):
            job = self._running.get(slot)
            if job is not None and job.request.id == owner:
                job.accept(len(run) - 1)
                self._shares.serve(job.request.owner, len(run))
                for sample in run:
                    events, freed = self._take(job, sample)
                    outcome.events.extend(events)
                    outcome.freed.extend(freed)
        self._forward_is_due = True
        return outcome

    def _reserve(self) -> None:
        """Give waiting prompts a slot and a lane each. Slots for requests with a prefilled prompt are left free."""
        needed = sum(len(prompt.jobs) for prompt in self._shared)
        while len(self._free_slots) > needed and self._free_lanes and (prompt := self._first_waiting()):
            self._waiting.discard(prompt)
            prompt.jobs[0].slot, prompt.lane = heappop(self._free_slots), heappop(self._free_lanes)
            self._staged.append(prompt)

    def _first_waiting(self) -> PendingPrompt | None:
        return self._waiting.first(self._slots_by_owner(), self._shares) if self._waiting else None

    def _slots_by_owner(self) -> Counter[str]:
        """Count the slots that each owner has or will have: running requests, and those whose prompt has a lane."""
        slots = Counter(job.request.owner for job in self._running.values())
        for prompt in (*self._staged, *self._shared):
            slots[prompt.owner] += len(prompt.jobs)
        return slots

    def _insert(self) -> Insert:
        prompt = self._shared[0]
        assert prompt.lane is not None
        job = prompt.jobs[0]
        job.slot = heappop(self._free_slots)
        self._decode_is_due = True
        return Insert(job.request, prompt.lane, job.slot)

    def _forward(self) -> Forward:
        for job in self._running.values():
            job.fed += 1
        if not self._limits.drafts:
            return Forward({})
        drafts = {slot: job.draft(self._limits.drafts) for slot, job in self._running.items()}
        return Forward({slot: tokens for slot, tokens in drafts.items() if tokens})

    def _chunk(self) -> Begin | Prefill:
        prompt = self._staged[0]
        request, slot = prompt.jobs[0].request, prompt.jobs[0].slot
        assert slot is not None
        assert prompt.lane is not None
        if prompt.cached is None:
            return Begin(request, prompt.lane)
        self._decode_is_due = True
        self._staged.rotate(-1)
        return Prefill(prompt.next_chunk(self._limits.chunk), slot)

    def _decode(self) -> Decode:
        self._decode_is_due = False
        owners: list[str | None] = [None] * self._limits.slots
        forced = {}
        for slot, job in self._running.items():
            owners[slot] = job.request.id
            if job.forced_token is not None:
                forced[slot] = job.forced_token
        return Decode(tuple(owners), forced)

    def _take(self, job: Job, sample: Sampled) -> Outcome:
        if sample.token is None:
            self.not_finite += 1
            return self.failed(job.request.id, _NOT_FINITE)
        reason = job.take(sample.token)
        events: list[Event] = [Token(job.request.id, sample.token, sample.logprob, reason is not None)]
        if reason is None:
            return Outcome(events, [])
        events.append(Finished(job.request.id, reason, job.usage()))
        return Outcome(events, self._leave(job))

    def _expire(self, job: Job) -> Outcome:
        request = job.request
        if job.sampled:
            return self.cancel(request.id)
        text = (
            f"the request had no token within its timeout of {request.timeout:.3g} s, beside {len(self._jobs) - 1:,} "
            "others; send it again later, or with a longer timeout"
        )
        return self.failed(request.id, Failure("DeadlineExceeded", text))

    def _leave(self, job: Job) -> list[Freed]:
        """Remove a job. Returns the slot that it used or had reserved, if any."""
        del self._jobs[job.request.id]
        self._deadlines.drop(job.request.id)
        if job.slot in self._running and self._running[job.slot] is job:
            del self._running[job.slot]
        else:
            self._leave_prompt(job)
        if job.slot is None:
            return []
        heappush(self._free_slots, job.slot)
        return [Freed(job.slot, job.resumable)]

    def _leave_prompt(self, job: Job) -> None:
        """Remove a job from its prompt. During prefill the next job takes its slot; the last job frees the lane."""
        prompt = job.prompt
        prompt.jobs.remove(job)
        if prompt.jobs and prompt in self._staged and prompt.jobs[0].slot is None:
            prompt.jobs[0].slot, job.slot = job.slot, None
        if not prompt.jobs:
            self._drop(prompt)
        self._waiting.update(prompt)

    def _drop(self, prompt: PendingPrompt) -> None:
        for queue in (self._staged, self._shared):
            if prompt in queue:
                queue.remove(prompt)
        if prompt.lane is not None:
            heappush(self._free_lanes, prompt.lane)
