"""play: several engines side by side, with the same prompts, in turns of a few steps.

    begin     one engine after another takes its prompts and runs them to their first tokens
    turns     a few decode steps of each engine in its turn, so that a drift of the machine meets all alike
    keep      requests leave, and the turns begin again with fewer: long prompts are prefilled once for all of them

Whoever is not asked sleeps. An engine that fails is noted with the reason, and the others go on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.peers.engines import Engine, Need
from bench.peers.journal import Journal
from bench.peers.pool import Loaded, Pool
from bench.peers.worker import Failed

OVERHEAD = 800_000_000  # bytes of a process beside weights and cache
PACKED = 1.5  # weights in memory over those in the file: several engines keep the file mapped beside packed ones
WARM_PROMPT, WARM_STEPS = 64, 2


@dataclass(frozen=True)
class Turns:
    """How long to measure: `count` turns of `steps` decode steps; one more step begins each turn and is not counted."""

    count: int
    steps: int
    timeout: float  # seconds for anything an engine is asked


@dataclass
class Seat:
    """An engine in a play. `need`: what its process must serve, by requests; `began`: requests it began with.

    own_batch: its number of requests, whatever the play says.
    """

    engine: Engine
    model: Path
    need: Callable[[int], Need]
    own_batch: int | None = None
    loaded: Loaded | None = None
    began: int = 0
    said: list[int] = field(default_factory=list)  # a lone request's tokens


@dataclass(frozen=True)
class Play:
    """One play; `name` is what the journal calls it; `prompts` are at least as many as requests will be."""

    name: str
    prompts: Sequence[list[int]]
    pool: Pool
    journal: Journal
    turns: Turns
    say: Callable[[str], None] = print

    @property
    def _place(self) -> str:
        """The name without the players, for people."""
        return self.name.rpartition("/")[0]

    def run(self, seats: Sequence[Seat], counts: Sequence[int]) -> None:
        """Measure all with so many requests at once, for each of `counts`; nothing if it was played before."""
        if self.journal.is_done(self.name):
            return
        try:
            for requests in sorted(counts, reverse=True):
                left = self._each(seats, requests, self._sit)
                for _ in range(self.turns.count):
                    left = self._each(left, requests, self._turn)
            self._each([seat for seat in seats if seat.loaded], min(counts), self._leave)
            self.journal.add(self.name, "done")
        finally:
            for seat in seats:
                self._discard(seat)  # those that were interrupted

    def start(self, seat: Seat, requests: int) -> None:
        """Only start it, and end it again."""
        if self.journal.is_done(self.name):
            return
        try:
            self._each([seat], requests, self._load)
            self.journal.add(self.name, "done")
        finally:
            self._discard(seat)

    def _each(self, seats: Sequence[Seat], count: int, do: Callable[[Seat, int], None]) -> list[Seat]:
        """Those that could."""
        could = []
        for seat in seats:
            requests = seat.own_batch or count
            try:
                do(seat, requests)
                could.append(seat)
            except Failed as error:
                self.say(f"{self._place} {seat.engine.name}, {requests} requests: {error}")
                self._note(seat, "failed", requests=requests, why=str(error))
                self._discard(seat)
        return could

    def _sit(self, seat: Seat, requests: int) -> None:
        """Have so many requests of this engine past their first tokens."""
        if seat.loaded is not None and not seat.engine.own_size:
            self._ask(seat, "keep", requests=requests)
            return
        if seat.loaded is not None:
            self._leave(seat, requests)
        self._load(seat, requests)
        answer = self._ask(seat, "begin", prompts=list(self.prompts[:requests]))
        seat.began, seat.said = requests, answer["tokens"][0]
        self._note(seat, "first", requests=requests, first_s=answer["first_s"])
        self.say(f"{self._place} {seat.engine.name}: {requests} prompts in {max(answer['first_s']):.2f} s")

    def _turn(self, seat: Seat, requests: int) -> None:
        answer = self._ask(seat, "steps", count=self.turns.steps + 1)
        laps = answer["laps_s"][1:]
        seat.said = seat.said + answer["tokens"][0]
        self._note(seat, "laps", requests=requests, laps_s=laps)
        self.say(f"{self._place} {seat.engine.name}: {requests} requests, {median(laps) * 1e3:.1f} ms a step")

    def _leave(self, seat: Seat, requests: int) -> None:
        answer = self._ask(seat, "end")
        if seat.began == 1:
            self._note(seat, "said", requests=1, tokens=seat.said)
        held = answer["facts"].get("cache_bytes") or cache_bytes(seat.engine, seat.need(seat.began))
        self._note(seat, "memory", requests=seat.began, rss_bytes=answer["rss_bytes"], cache_bytes=held)
        assert seat.loaded is not None
        self.pool.give_back(seat.loaded)
        seat.loaded = None

    def _load(self, seat: Seat, requests: int) -> None:
        engine, need = seat.engine, seat.need(requests)
        bytes_ = needed_bytes(engine, need, weight_bytes(seat.model))
        seat.loaded, is_new = self.pool.take(engine.name, engine.worker, seat.model, engine.options(need), bytes_)
        if is_new:
            self._note(seat, "start", requests=requests, start_s=seat.loaded.start_s, facts=seat.loaded.facts)
            self.say(f"{self._place} {engine.name}: ready in {seat.loaded.start_s:.1f} s")
            self._ask(seat, "begin", prompts=[self.prompts[0][:WARM_PROMPT]])
            self._ask(seat, "steps", count=WARM_STEPS)
            self._ask(seat, "end")

    def _discard(self, seat: Seat) -> None:
        if seat.loaded is not None:
            self.pool.discard(seat.loaded)
        seat.loaded = None

    def _ask(self, seat: Seat, verb: str, **fields: Any) -> dict[str, Any]:
        assert seat.loaded is not None
        return seat.loaded.worker.ask(verb, self.turns.timeout, **fields)

    def _note(self, seat: Seat, kind: str, **fields: Any) -> None:
        length = len(self.prompts[0])
        self.journal.add(self.name, kind, engine=seat.engine.name, prompt=length, **fields)


def cache_bytes(engine: Engine, need: Need) -> int:
    """Keys and values at their most, of engines that do not tell."""
    return int(engine.holds(need) * need.token_bytes * engine.shares(need.head_dim))


def needed_bytes(engine: Engine, need: Need, weights: int) -> int:
    """About what a process will hold."""
    return int(PACKED * weights) + int(cache_bytes(engine, need) * engine.slack) + OVERHEAD


def weight_bytes(model: Path) -> int:
    """Bytes of a model's file, or of all files of its directory."""
    return sum(path.stat().st_size for path in model.rglob("*")) if model.is_dir() else model.stat().st_size
