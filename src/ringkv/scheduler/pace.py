"""Pace: the work between two tokens of running requests, and how much more of it they may wait for."""

from collections.abc import Mapping, Sequence

from ringkv.base.engine import Limits, PrefillChunk
from ringkv.scheduler.costs import Costs, Work, chunk_work, review_work
from ringkv.scheduler.job import Job, PendingPrompt, in_order, pack


class Pace:
    """running: by slot, as the scheduler has them. work: since the last sampling."""

    def __init__(self, limits: Limits, running: Mapping[int, Job]) -> None:
        self._limits, self._running = limits, running
        self._costs = Costs()
        self.work = Work()
        self._passes = 0  # with prompts so far
        self._most_rows, self._most_scored = limits.unit, limits.unit // 2  # of prompts in one of them

    def sampled(self, seconds: float | None) -> None:
        """Begin anew after a sampling. seconds: that the work took; None if that is not known."""
        if seconds is not None:
            self._costs.observe(self.work, seconds)
        self.work = Work()

    def feed(self) -> None:
        """Count the tokens that the next pass feeds."""
        self.work += self._reviews()
        for job in self._running.values():
            job.fed += 1
        self.work += self._feeding()

    def may_insert(self, prompt: PendingPrompt) -> bool:
        """Whether an insertion fits beside what was done since the last tokens."""
        return self._limits.packs and self._fits(self.work + self.insertion_of(prompt.length))

    def insertion_of(self, tokens: int) -> Work:
        """Return the work of inserting a prompt of so many tokens."""
        return Work(ends=1, moved=min(tokens, self._limits.workspace.size))

    def work_of(self, chunks: Sequence[PrefillChunk]) -> Work:
        """Return the work of chunks in one pass."""
        scored = sum(chunk.stop - chunk.start for chunk in chunks if chunk.request.sampling.prompt_logprobs is not None)
        work = (chunk_work(chunk.start, chunk.stop, self._limits.workspace) for chunk in chunks)
        return sum(work, Work(scored=scored))

    def chunks(self, prompts: Sequence[PendingPrompt], feed: bool) -> list[PrefillChunk]:
        """Return the chunks of the next pass: as many as fit into the time that running requests may wait."""
        if not self._limits.packs:
            return [prompts[0].next_chunk(self._limits.chunk)]
        unit, before = self._limits.unit, self.work + (self._reviews() + self._feeding() if feed else Work())
        self._passes += 1
        prompts = in_order(prompts, self._passes)
        bounded = bool(self._running) and self._limits.max_step > 0
        rows = min(self._limits.chunk, 2 * self._most_rows) if bounded else self._limits.chunk
        chunks = pack(prompts, rows, unit)
        while bounded and rows > unit and (self._is_new(chunks) or not self._fits(before + self._ending(chunks))):
            rows = max(unit, min(rows - unit, rows * 3 // 4 // unit * unit))
            chunks = pack(prompts, rows, unit)
        if bounded:
            work = self.work_of(chunks)
            self._most_rows, self._most_scored = max(self._most_rows, work.rows), max(self._most_scored, work.scored)
        return chunks

    def _is_new(self, chunks: Sequence[PrefillChunk]) -> bool:
        """Whether they have so many more scored rows than any pass before that what these cost is not known."""
        return self.work_of(chunks).scored > 2 * self._most_scored

    def _fits(self, work: Work) -> bool:
        """Whether running requests may wait for so much work between two tokens.

        If feeding them takes most of `max_step`, prompts get as long again. Else they would hardly get on.
        """
        seconds = self._limits.max_step
        return not seconds or self._costs.predict(work) <= max(seconds, 2 * self._costs.predict(self._feeding()))

    def _ending(self, chunks: Sequence[PrefillChunk]) -> Work:
        """The work of chunks, and of inserting the prompts that end with them."""
        ends = [len(chunk.request.tokens) for chunk in chunks if chunk.is_last]
        return sum(map(self.insertion_of, ends), self.work_of(chunks))

    def _feeding(self) -> Work:
        """The work of feeding each slot a token."""
        live = sum(job.layout.live(job.seen) for job in self._running.values() if job.layout)
        return Work(rows=len(self._running), entries=live)

    def _reviews(self) -> Work:
        """The work of reviewing slots before they are fed."""
        running = [(job.layout, job.seen) for job in self._running.values()]
        return sum((review_work(layout, seen) for layout, seen in running if layout), Work())
