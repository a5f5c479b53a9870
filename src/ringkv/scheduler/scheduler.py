"""Scheduler: decides what the engine does next. It has no tensors and calls no device.

    submit -> waiting -> prefilling (a slot and a staging lane are reserved) -> running (in its slot) -> last event

- Requests take slots and lanes in the order of `WaitingPrompts`: priority, the owner's share, submission. A request
  that is held, because its grammar is still being compiled, is skipped and keeps its place. A prefilled prompt whose
  requests wait for slots keeps its lane, and its place in this order.
- A prompt that gets a lane begins with its cached tokens and is prefilled from there. If a prompt that begins alike is
  being prefilled, it waits until it can take their common blocks from the prefix store.
- Requests that are submitted together have one prompt and share its prefill; with a prefix store also later requests
  with the same prompt. If the prompt is longer than its lane, only those with one choice do. The prompt keeps its lane
  until all who wait have a slot.
- What happens between two tokens of a running request is bounded: by `Limits.max_step`, or twice a decode step if that
  is longer, if the engine packs chunks of several prompts into a pass; else to one chunk or insertion. If no request
  runs, passes and insertions follow each other directly.
- An insertion that takes longer is done in parts of `max_step` between decode steps. Until it ends, no prompt is
  prefilled.
- If slots may ride, tokens are fed in the pass that prefills. Else a pass is followed by a decode step.
- A decode step is two actions, Decode then Forward. A request that ends between them is not fed.
- Forward may carry drafts. The next Decode then returns several tokens for a slot. Only the last can end its request.
- A request that keeps every token, of which no slot holds as many, is answered in its lane, and has that to itself.
- Another process may prefill the prompts: Begin requests a prompt of it, and `arrived` reports that it is prefilled. Or
  another process may decode: a request whose prompt is in its slot stays there until `cancel`.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import count

from ringkv.base.engine import Cached, Limits, PrefillChunk, Run, Sampled
from ringkv.base.errors import InvalidRequest
from ringkv.base.events import Event, Failed, Finished, Token, Usage
from ringkv.base.failure import Failure
from ringkv.base.kv import BLOCK, KVChoice, Layouts
from ringkv.base.messages import Occupancy, PromptState, Stats
from ringkv.base.request import Request
from ringkv.scheduler.actions import Action, Begin, Decode, Forward, Freed, Idle, Insert, Outcome, Prefill
from ringkv.scheduler.costs import Work
from ringkv.scheduler.drafting import Drafting
from ringkv.scheduler.job import Job, PendingPrompt, slot_state
from ringkv.scheduler.lanes import FreeLanes, FreeSlots
from ringkv.scheduler.pace import Pace
from ringkv.scheduler.waiting import Shares, WaitingPrompts, turn

_NOT_FINITE = Failure(
    "RequestFailed",
    "the model's output was not finite (NaN or infinity), so no token could be sampled; try another dtype or prompt",
)


class Scheduler:
    """The queues of requests, slots and lanes. Call it from one thread.

    prefills, decodes: whether this process does that for its requests. If another process prefills, each request is a
    prompt of its own. A slot is saved for a later turn only if this process does both.
    """

    def __init__(self, limits: Limits, default_kv: KVChoice, prefills: bool = True, decodes: bool = True) -> None:
        self._limits, self._default_kv = limits, default_kv
        self._prefills, self._decodes = prefills, decodes
        self._jobs: dict[str, Job] = {}
        self._waiting = WaitingPrompts()
        self._staged: deque[PendingPrompt] = deque()  # being prefilled; the next prompt first
        self._shared: deque[PendingPrompt] = deque()  # prefilled, in their lanes for jobs without a slot
        self._running: dict[int, Job] = {}  # by slot
        self._free_slots = FreeSlots(limits.slots, limits.slot_ranks)
        self._lanes = FreeLanes(limits)
        self._arrivals, self._shares = count(), Shares()
        self.deadlines: dict[str, float] = {}  # when requests must end, on the clock of `expire`
        self.not_finite = 0  # requests that failed because their logits were not finite
        self.prefilled_tokens = 0  # of prompts, without cached tokens
        self._pace = Pace(limits, self._running)
        self._drafting = Drafting(self._running, limits.has_draft_model)
        self._stalls = False  # a pass or an insertion has run since the last sampling, beside feeding the slots
        self._forward_is_due = False  # tokens were sampled and not yet fed
        self._insert_is_due = False  # an insertion did not fit; it is the next thing beside feeding the slots
        self._inserting: Job | None = None  # its insertion has begun, and the rest follows
        self._measurable = True  # no part of an insertion was done since the last sampling
        self._fed = False  # slots were fed since the last sampling, and a request has run ever since

    @property
    def idle(self) -> bool:
        return not self._jobs

    def stats(self) -> Stats:
        running, staged = len(self._running), len(self._staged)
        waiting = len(self._jobs) - running - staged
        return Stats(waiting, staged, running, len(self._free_slots), len(self._lanes.free))

    def slots(self) -> Occupancy:
        """Return what is held now: prompts in prefill, and the slots of running requests."""
        running = sorted(self._running.items())
        prompts = (PromptState(prompt.request.id, prompt.length, prompt.prefilled) for prompt in self._staged)
        return Occupancy(tuple(prompts), tuple(slot_state(slot, job, self._limits) for slot, job in running))

    def prefilled(self, request_id: str) -> int:
        """Return the prefilled prompt tokens of a request; 0 for an unknown or finished request."""
        job = self._jobs.get(request_id)
        return job.prompt.prefilled if job else 0

    def usage(self, request_id: str) -> Usage | None:
        """Return the usage of a request so far; None for an unknown or finished request."""
        job = self._jobs.get(request_id)
        return job.usage() if job else None

    def left_to_sample(self, request_id: str) -> int:
        """Return how many tokens a running request may still sample."""
        return self._jobs[request_id].left_to_sample

    def submit(self, request: Request, *others: Request) -> None:
        """Queue a request, and `others` that have the same prompt. Raises `InvalidRequest` if an id is in use.

        They wait as one prompt; as one for each choice if it is longer than its lane.
        """
        together = [(each, each.kv or self._default_kv) for each in (request, *others)]
        shared = {
            (each.tokens, each.salt, each.owner, each.priority, each.sampling.prompt_logprobs) for each, _ in together
        }
        assert len(shared) == 1, "requests that are submitted together have one prompt, owner and priority"
        choices = {kv for _, kv in together}
        assert len(choices) == 1 or all(kv.turns == "reread" for kv in choices), "turns=continue needs one choice"
        used = next((each.id for each, _ in together if each.id in self._jobs), None)
        if used is not None:
            raise InvalidRequest(f"request id {used!r} is in use; choose another, or wait until it ends", "id")
        is_compacted = len(request.tokens) > self._limits.workspace.size
        prompts: dict[object, PendingPrompt] = {}
        for each, kv in together:
            new = PendingPrompt(owner=request.owner, priority=request.priority)
            is_alone = not self._prefills or self._limits.stays(len(each.tokens), kv)
            prompt = prompts.setdefault(each.id if is_alone else kv if is_compacted else None, new)
            self._jobs[each.id] = job = Job(each, kv, self._limits, prompt)
            prompt.jobs.append(job)
        for prompt in prompts.values():
            prompt.arrival = next(self._arrivals)
            self._waiting.update(prompt)

    def hold(self, request_id: str, is_held: bool = True) -> None:
        """Keep a request that was just submitted from taking a lane, or no longer."""
        job = self._jobs[request_id]
        job.is_held = is_held
        self._waiting.update(job.prompt)

    def expire(self, now: float) -> Outcome:
        """End the requests whose deadline has passed: with the tokens that they have, or with an error without any."""
        due = sorted((when, request_id) for request_id, when in self.deadlines.items() if when <= now)
        return Outcome.joined(self._expire(request_id) for _, request_id in due)

    def cancel(self, request_id: str) -> Outcome:
        """End a request at any stage. Does nothing for an unknown or finished request."""
        job = self._jobs.get(request_id)
        if job is None:
            return Outcome([], [])
        return Outcome([Finished(request_id, "abort", job.usage())], self._leave(job))

    def failed(self, request_id: str, failure: Failure) -> Outcome:
        """End a request with an error. Its entries are not saved for a later turn."""
        freed = [Freed(slot) for slot, _ in self._leave(self._jobs[request_id])]
        return Outcome([Failed(request_id, failure.kind, failure.message, failure.param)], freed)

    def next(self) -> Action:
        """Return the next action. Report its end: `begun`, `passed`, `inserted`, `sampled`, or `failed`."""
        self._fed &= bool(self._running)
        if self._forward_is_due and self._running:
            mixes = self._limits.rides and not self._insert_is_due
            return (mixes and self._stage(self._reserve(), feed=True)) or self._forward()
        self._forward_is_due = False
        begin = self._reserve()
        if begin and not self._prefills:
            return begin
        insertable = self._inserting.prompt if self._inserting else self._first_insertable()
        self._insert_is_due = insertable is not None
        stalls = self._running and self._stalls
        if insertable is not None and (not stalls or (not self._inserting and self._pace.may_insert(insertable))):
            return self._insert(self._inserting or insertable.jobs[0])
        waits = not self._prefills or stalls or (self._running and self._limits.rides)
        if not waits and (staged := self._stage(begin, feed=False)):
            return staged
        return self._decode() if self._running else Idle()

    def sharing(self, request: Request) -> list[str]:
        """Return the requests that wait for the prompt of this request."""
        return [job.request.id for job in self._jobs[request.id].prompt.jobs]

    def begun(self, request: Request, cached: Cached) -> None:
        """Report what was copied to its lane of a prompt's cached tokens. If any were, a decode step is due."""
        self._jobs[request.id].prompt.begin(cached)
        self._shares.serve(request.owner, len(request.tokens) - cached.tokens)
        self._pace.work += Work(moved=cached.entries)
        self._stalls |= cached.tokens > 0

    def arrived(self, request: Request, cached: Cached) -> int:
        """Report that another process has prefilled a prompt that was begun, and what it had cached. Returns the lane.

        An Insert of the prompt follows.
        """
        prompt = self._jobs[request.id].prompt
        prompt.begin(cached)
        chunk = prompt.chunk(prompt.length)
        self.passed(chunk)
        return chunk.lane

    def passed(self, work: PrefillChunk) -> None:
        """Report that a chunk has run. After its last chunk a prompt waits in its lane until it is inserted."""
        prompt = self._jobs[work.request.id].prompt
        self.prefilled_tokens += work.stop - work.start
        if work.is_last:
            self._staged.remove(prompt)
            self._shared.append(prompt)

    def paused(self, request_id: str) -> None:
        """Report that an insertion has taken `max_step` and is not done. Its Insert comes again."""
        self._inserting, self._measurable = self._jobs[request_id], False

    def inserted(self, request_id: str, layouts: Layouts) -> None:
        """Report that the request's prompt is compressed and in its slot. The next decode step here samples from it."""
        job = self._jobs[request_id]
        assert job.slot is not None
        self._pace.work += self._pace.insertion_of(job.prompt.length)
        job.run(layouts)
        self._drafting.enter(job)
        if self._decodes:
            self._running[job.slot] = job
        if job.stays:
            self._shared.remove(job.prompt)
        else:
            self._leave_prompt(job)

    def sampled(self, owners: Sequence[str | None], runs: Sequence[Run], seconds: float | None = None) -> Outcome:
        """Report a run of tokens per slot. Runs whose owner ended after the step began are dropped.

        seconds: since the last sampling; None if no request ran then.
        """
        seconds = seconds if self._fed and self._measurable else None
        self._pace.sampled(seconds)
        self._drafting.sampled(None if self._stalls else seconds)
        self._stalls, self._fed, self._measurable = False, False, self._inserting is None
        outcomes = []
        for slot, (owner, run) in enumerate(zip(owners, runs, strict=True)):
            job = self._running.get(slot)
            if job is not None and job.request.id == owner:
                job.accept(len(run) - 1)
                self._shares.serve(job.request.owner, len(run))
                outcomes += [self._take(job, sample) for sample in run]
        self._forward_is_due = True
        return Outcome.joined(outcomes)

    def _reserve(self) -> Begin | None:
        """Give waiting prompts a slot and a lane each, and return the Begin of a prompt that is new in its lane.

        A prompt that is in a lane already needs no other.
        """
        while self._free_slots and (prompt := self._first_waiting()):
            self._waiting.discard(prompt)
            prompt.alike.clear()
            if (twin := self._twin(prompt)) is not None:
                self._join(prompt, twin)
            else:
                prompt.jobs[0].slot = self._free_slots.take()
                self._staged.append(prompt)
        new = next((prompt for prompt in self._staged if prompt.cached is None), None)
        return Begin(new.request, new.lane, new.entries) if new and new.lane is not None else None

    @property
    def _in_lanes(self) -> list[PendingPrompt]:
        return [*self._staged, *self._shared]

    def _slots_by_owner(self) -> Counter[str]:
        """Return how many slots each owner has, or will have for requests whose prompt is in a lane."""
        slots = Counter(job.request.owner for job in self._running.values())
        slots.update(job.request.owner for prompt in self._in_lanes for job in prompt.jobs)
        return slots

    def _has_slot(self, prompt: PendingPrompt, slots: Mapping[str, int]) -> bool:
        """Whether a slot is left for a waiting prompt, besides those of requests in lanes whose turn is before its."""
        own = turn(prompt, slots, self._shares)
        before = (other for other in self._in_lanes if turn(other, slots, self._shares) < own)
        return len(self._free_slots) > sum(job.slot is None for other in before for job in other.jobs)

    def _first_waiting(self) -> PendingPrompt | None:
        """Return the prompt whose turn it is, with a lane. If it needs too many entries, a short prompt may pass it."""
        if not self._waiting:
            return None
        slots = self._slots_by_owner()
        prompt = self._waiting.first(slots, self._shares, self._is_ready)
        if prompt is None or not self._has_slot(prompt, slots):
            return None
        if self._twin(prompt) or self._lanes.take(prompt):
            return prompt
        if not self._lanes.has_room_for_short:
            return None
        short = self._waiting.first(slots, self._shares, self._lanes.has_room_beside)
        if short is None or not self._has_slot(short, slots):
            return None
        return short if self._twin(short) or self._lanes.take(short, beside=True) else None

    def _first_insertable(self) -> PendingPrompt | None:
        """Return the prefilled prompt whose turn it is; first of those with a reserved slot."""
        reserved = [prompt for prompt in self._shared if prompt.jobs[0].slot is not None]
        if not self._shared or not (reserved or self._free_slots):
            return None
        slots = self._slots_by_owner()
        return min(reserved or self._shared, key=lambda prompt: turn(prompt, slots, self._shares))

    def _is_ready(self, prompt: PendingPrompt) -> bool:
        """Whether no prompt that begins like this prompt is being prefilled, whose blocks it could soon have cached."""
        if self._key(prompt) is None or self._twin(prompt):
            return True
        # The last tokens are always prefilled, and a compacted lane stores nothing.
        usable = min(prompt.length, self._limits.workspace.size) - prompt.jobs[0].kv.window
        return not any(
            other.twin_key is not None
            and other.request.salt == prompt.request.salt
            and other.prefilled < usable
            and min(usable, prompt.common(other)) // BLOCK * BLOCK > other.prefilled
            for other in self._staged
        )

    def _twin(self, prompt: PendingPrompt) -> PendingPrompt | None:
        """Return the prompt in a lane, being prefilled or prefilled, with the same tokens."""
        key = self._key(prompt)
        if key is None:
            return None
        twins = (other for other in self._in_lanes if other is not prompt and other.twin_key == key)
        return next(twins, None) or self._lanes.kept(key)

    def _key(self, prompt: PendingPrompt) -> bytes | None:
        """Return what is equal for prompts that may share a prefill; None without a prefix store."""
        return prompt.twin_key if self._limits.store_bytes > 0 else None

    def _join(self, prompt: PendingPrompt, twin: PendingPrompt) -> None:
        """Let a waiting prompt's requests share the prefill of a prompt in a lane."""
        if not twin.jobs:
            self._lanes.again(twin)
            self._shared.append(twin)
        for job in prompt.jobs:
            job.prompt, job.shared = twin, twin.prefilled
        twin.jobs.extend(prompt.jobs)

    def _insert(self, job: Job) -> Insert:
        assert job.prompt.lane is not None
        if job.slot is None:
            job.slot = self._free_slots.take()
        self._stalls = True
        return Insert(job.request, job.prompt.lane, job.slot)

    def _feed(self) -> None:
        self._forward_is_due, self._fed = False, True
        self._pace.feed()

    def _forward(self) -> Forward:
        self._feed()
        if not self._limits.drafts:
            return Forward({})
        drafts = {slot: job.draft(self._limits.drafts) for slot, job in self._running.items()}
        return Forward(self._drafting.choose({slot: tokens for slot, tokens in drafts.items() if tokens}))

    def fed(self, drafts: Mapping[int, int]) -> None:
        """Report how many drafts a Forward has fed, by slot."""
        self._drafting.fed(drafts)

    def _stage(self, begin: Begin | None, feed: bool) -> Begin | Prefill | None:
        """Return what brings the staged prompts further; None if there are none.

        begin: of one that is new in its lane. While requests run, cached tokens are loaded for one prompt at a time.
        feed: a pass feeds the slots too.
        """
        if begin and not (self._running and self._pace.work.moved):
            return begin
        ready = [prompt for prompt in self._staged if prompt.cached is not None]
        if not ready:
            return None
        chunks = self._pace.chunks(ready, feed)
        if feed:
            self._feed()
        self._stalls = True
        self._pace.work += self._pace.work_of(chunks)
        self._staged.rotate(-1)
        slots = []
        for chunk in chunks:
            job = self._jobs[chunk.request.id]
            assert job.slot is not None
            job.prompt.prefilled = chunk.stop
            slots.append(job.slot)
        return Prefill(tuple(chunks), tuple(slots), feed)

    def _decode(self) -> Decode:
        jobs = (self._running.get(slot) for slot in range(self._limits.slots))
        forced = {slot: job.forced_token for slot, job in self._running.items() if job.forced_token is not None}
        return Decode(tuple(job.request.id if job else None for job in jobs), forced)

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

    def _expire(self, request_id: str) -> Outcome:
        job = self._jobs[request_id]
        if job.sampled:
            return self.cancel(request_id)
        text = (
            f"the request had no token within its timeout of {job.request.timeout:.3g} s, beside "
            f"{len(self._jobs) - 1:,} others; send it again later, or with a longer timeout"
        )
        return self.failed(request_id, Failure("DeadlineExceeded", text))

    def _leave(self, job: Job) -> list[Freed]:
        """Remove a job. Returns the slot that it used or had reserved, if any."""
        del self._jobs[job.request.id]
        self._drafting.leave(job)
        self.deadlines.pop(job.request.id, None)
        if not job.layouts:
            self._leave_prompt(job)
        elif job.stays:
            self._lanes.give(job.prompt)
        if job.slot is None:
            return []
        self._running.pop(job.slot, None)
        self._free_slots.give(job.slot)
        return [Freed(job.slot, job.resumable if self._prefills and self._decodes else ())]

    def _leave_prompt(self, job: Job) -> None:
        """Remove a job from its prompt. During prefill the next job takes its slot.

        The last job frees the lane, but a prompt that is prefilled is kept there for others like it.
        """
        prompt = job.prompt
        prompt.jobs.remove(job)
        if job is self._inserting:
            self._inserting = None
        if prompt.jobs:
            if prompt in self._staged and prompt.jobs[0].slot is None:
                prompt.jobs[0].slot, job.slot = job.slot, None
        elif prompt in self._shared:
            self._shared.remove(prompt)
            self._lanes.keep(prompt, self._key(prompt))
        elif prompt in self._staged:
            self._staged.remove(prompt)
            self._lanes.give(prompt)
        self._waiting.update(prompt)
