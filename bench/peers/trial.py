"""trial: several engines side by side with the same prompts, alternating after a few steps.

    begin     each engine in turn prefills its prompts up to their first tokens
    turns     each engine in turn runs a few decode steps, so that machine drift affects all alike
    keep      requests are dropped and the turns repeat with fewer; long prompts are prefilled once for all counts

Engines are stopped outside their turns. A failure is recorded with its reason, and the other engines go on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.journal import Journal
from bench.peers.engines import Demand, PeerEngine
from bench.peers.pool import Loaded, Pool
from bench.peers.worker import WorkerFailed

OVERHEAD = 800_000_000  # bytes of a process besides weights and cache
PACKED = 1.5  # bytes of weights in memory over file size, as some engines map the file beside packed weights
WARM_PROMPT, WARM_STEPS = 64, 2


@dataclass(frozen=True)
class Schedule:
    """The number of turns, and of decode steps in a turn; each turn has one more step first, which is not counted."""

    count: int
    steps: int
    timeout: float  # seconds for one reply of an engine


@dataclass
class Participant:
    """An engine in a trial.

    need: the demand on its process, by number of requests. began: the number of requests it began with.
    batch: its number of requests, which overrides the trial's.
    """

    engine: PeerEngine
    model: Path
    need: Callable[[int], Demand]
    batch: int | None = None
    loaded: Loaded | None = None
    began: int = 0
    output: list[int] = field(default_factory=list)  # a lone request's tokens


@dataclass(frozen=True)
class Trial:
    """One trial. name: its name in the journal. prompts: at least one per request."""

    name: str
    prompts: Sequence[list[int]]
    pool: Pool
    journal: Journal
    schedule: Schedule
    report: Callable[[str], None] = print

    @property
    def _title(self) -> str:
        """The name without the engines, for messages."""
        return self.name.rpartition("/")[0]

    def run(self, participants: Sequence[Participant], counts: Sequence[int]) -> None:
        """Measure all engines with each number of requests in `counts`, unless the journal has this trial."""
        if self.journal.is_done(self.name):
            return
        try:
            for requests in sorted(counts, reverse=True):
                left = self._each(participants, requests, self._begin)
                for _ in range(self.schedule.count):
                    left = self._each(left, requests, self._turn)
            self._each([participant for participant in participants if participant.loaded], min(counts), self._end)
            self.journal.add(self.name, "done")
        finally:
            for participant in participants:
                self._discard(participant)  # only interrupted engines are still loaded

    def start(self, participant: Participant, requests: int) -> None:
        """Start the engine, record its start time, and end it."""
        if self.journal.is_done(self.name):
            return
        try:
            self._each([participant], requests, self._load)
            self.journal.add(self.name, "done")
        finally:
            self._discard(participant)

    def _each(
        self, participants: Sequence[Participant], count: int, do: Callable[[Participant, int], None]
    ) -> list[Participant]:
        """Call `do` for each engine and return those that did not fail."""
        succeeded = []
        for participant in participants:
            requests = participant.batch or count
            try:
                do(participant, requests)
                succeeded.append(participant)
            except WorkerFailed as error:
                self.report(f"{self._title} {participant.engine.name}, {requests} requests: {error}")
                self._note(participant, "failed", requests=requests, why=str(error))
                self._discard(participant)
        return succeeded

    def _begin(self, participant: Participant, requests: int) -> None:
        """Bring this many requests of the engine past their first tokens."""
        if participant.loaded is not None and not participant.engine.fixed_size:
            self._call(participant, "keep", requests=requests)
            return
        if participant.loaded is not None:
            self._end(participant, requests)
        self._load(participant, requests)
        reply = self._call(participant, "begin", prompts=list(self.prompts[:requests]))
        participant.began, participant.output = requests, reply["tokens"][0]
        self._note(participant, "first", requests=requests, first_s=reply["first_s"])
        self.report(f"{self._title} {participant.engine.name}: {requests} prompts in {max(reply['first_s']):.2f} s")

    def _turn(self, participant: Participant, requests: int) -> None:
        reply = self._call(participant, "steps", count=self.schedule.steps + 1)
        laps = reply["laps_s"][1:]
        participant.output = participant.output + reply["tokens"][0]
        self._note(participant, "laps", requests=requests, laps_s=laps)
        self.report(
            f"{self._title} {participant.engine.name}: {requests} requests, {median(laps) * 1e3:.1f} ms per step"
        )

    def _end(self, participant: Participant, requests: int) -> None:
        reply = self._call(participant, "end")
        if participant.began == 1:
            self._note(participant, "output", requests=1, tokens=participant.output)
        size = reply["facts"].get("cache_bytes") or cache_bytes(participant.engine, participant.need(participant.began))
        self._note(participant, "memory", requests=participant.began, rss_bytes=reply["rss_bytes"], cache_bytes=size)
        assert participant.loaded is not None
        self.pool.give_back(participant.loaded)
        participant.loaded = None

    def _load(self, participant: Participant, requests: int) -> None:
        engine, model, need = participant.engine, participant.model, participant.need(requests)
        size = needed_bytes(engine, need, weight_bytes(model))
        participant.loaded, is_new = self.pool.take(engine.name, engine.worker, model, engine.options(need), size)
        if is_new:
            start_s, facts = participant.loaded.start_s, participant.loaded.facts
            self._note(participant, "start", requests=requests, start_s=start_s, facts=facts)
            self.report(f"{self._title} {engine.name}: ready in {start_s:.1f} s")
            self._call(participant, "begin", prompts=[self.prompts[0][:WARM_PROMPT]])
            self._call(participant, "steps", count=WARM_STEPS)
            self._call(participant, "end")

    def _discard(self, participant: Participant) -> None:
        if participant.loaded is not None:
            self.pool.discard(participant.loaded)
        participant.loaded = None

    def _call(self, participant: Participant, verb: str, **fields: Any) -> dict[str, Any]:
        assert participant.loaded is not None
        return participant.loaded.worker.call(verb, self.schedule.timeout, **fields)

    def _note(self, participant: Participant, kind: str, **fields: Any) -> None:
        length = len(self.prompts[0])
        self.journal.add(self.name, kind, engine=participant.engine.name, prompt=length, **fields)


def cache_bytes(engine: PeerEngine, need: Demand) -> int:
    """Return the peak bytes of keys and values, for engines that do not report them."""
    return int(engine.peak_tokens(need) * need.token_bytes * engine.shares(need.head_dim))


def needed_bytes(engine: PeerEngine, need: Demand, weights: int) -> int:
    """Estimate the memory of a process."""
    return int(PACKED * weights) + cache_bytes(engine, need) + OVERHEAD


def weight_bytes(model: Path) -> int:
    """Return the bytes of a model's file, or of all files of its directory."""
    return sum(path.stat().st_size for path in model.rglob("*")) if model.is_dir() else model.stat().st_size
