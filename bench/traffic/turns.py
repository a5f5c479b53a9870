"""turns: engines in alternating turns; each turn is written to a journal at once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bench.journal import Journal
from bench.peers.worker import Worker, WorkerFailed
from bench.results import cells_of
from bench.traffic.engines import Demand
from bench.traffic.figures import TrafficTurn
from bench.traffic.loads import Load, Texts
from bench.traffic.server import Server, ServerFailed
from bench.traffic.traces import Ask

READY_S, ANSWER_S = 900, 3600  # the longest start, and the longest load
WARM, WARM_OUTPUT = 8, 16  # requests and their output tokens, before the first turn of a server
RESERVE = 3 << 29  # bytes of a server beside its weights and cache

Report = Callable[[str], None]
Start = Callable[[str, Demand], Server]


@dataclass
class Servers:
    """The running servers of one demand; all but one are stopped. `weights`: bytes by engine."""

    start: Start
    demand: Demand
    ready: Mapping[str, str]
    weights: Mapping[str, int]
    available: Callable[[], int]
    report: Report
    running: dict[str, Server] = field(default_factory=dict)

    def take(self, engine: str) -> tuple[Server, bool]:
        """Let an engine's server run, and return whether it was started now. Raises ServerFailed."""
        server, is_new = self.running.pop(engine, None), False
        if server is None or not server.alive:
            self._make_room(self.weights[engine] + self.demand.cache_bytes + RESERVE)
            server, is_new = self.start(engine, self.demand), True
        self.running[engine] = server  # the last used is the last in order
        if is_new:
            self.report(f"{engine} is ready after {server.wait(self.ready[engine], READY_S):.0f} s")
        server.resume()
        return server, is_new

    def drop(self, engine: str) -> None:
        if server := self.running.pop(engine, None):
            server.kill()

    def close(self) -> None:
        for engine in list(self.running):
            self.drop(engine)

    def _make_room(self, need: int) -> None:
        for engine in list(self.running):
            if self.available() < need:
                self.drop(engine)


@dataclass(frozen=True)
class Turns:
    """Engines in turn under the same loads. stop: an engine whose share of good requests is below it is left out of
    higher rates."""

    servers: Servers
    clients: Worker
    texts: Texts
    journal: Journal
    model: str
    count: int
    stop: float
    report: Report

    def measure(self, loads: Sequence[Load], engines: Sequence[str], settings: Mapping[str, str]) -> None:
        """Measure loads in order: for each load every engine, as often as there are turns."""
        broken: set[str] = set()
        for load in loads:
            for turn in range(self.count):
                for engine in engines:
                    if engine not in broken:
                        self._turn(load, engine, turn, settings[engine])
            if load.rate is not None:
                broken |= {engine for engine in engines if self._share(load, engine, settings[engine]) < self.stop}

    def _turn(self, load: Load, engine: str, turn: int, settings: str) -> None:
        trial = self._trial(load, engine, turn, settings)
        if self.journal.is_done(trial):
            return
        case = {"model": self.model, "engine": engine, "settings": settings, **case_of(load)}
        case["cache_bytes"] = self.servers.demand.cache_bytes
        try:
            measured = self._send(load, engine, turn)
        except (ServerFailed, WorkerFailed) as error:
            self.report(f"{load.name}, {engine}: {error}")
            self.servers.drop(engine)
            self.journal.add(trial, "failed", **case, why=f"{error}")  # not done: it is tried again when resumed
        else:
            self.journal.add(trial, "turn", **case, **asdict(measured))
            self.journal.add(trial, "done")
            self.report(
                f"{load.name}, {engine}, turn {turn + 1}: {measured.tokens / measured.duration:.1f} tokens/s "
                f"in {measured.duration:.0f} s, {measured.good} of {measured.sent} good; "
                f"clients took {measured.cpu_s / measured.duration:.0%} of a core"
                + (f"; {measured.error}" if measured.error else "")
            )

    def _send(self, load: Load, engine: str, turn: int) -> TrafficTurn:
        server, is_new = self.servers.take(engine)
        try:
            if is_new:
                warm = self._asks("warm", replace(load, asks=load.asks[:WARM]))
                self._call(server, WARM, [ask._replace(arrival=0.0, output=WARM_OUTPUT) for ask in warm])
            asks = self._asks(f"{load.name} {turn}", load)
            reply = self._call(server, load.clients, asks)
        finally:
            server.pause()
        if not server.alive:
            raise ServerFailed("the server ended under the load")
        return TrafficTurn.of(reply, [ask.output for ask in asks], load.seconds)

    def _asks(self, scope: str, load: Load) -> list[Ask]:
        return [self.texts.ask(scope, f"{place}", lengths, load.part) for place, lengths in enumerate(load.asks)]

    def _call(self, server: Server, clients: int | None, asks: Sequence[Ask]) -> dict[str, Any]:
        served = self.servers.demand.served
        return self.clients.call("send", ANSWER_S, url=server.url, model=served, clients=clients, asks=asks)

    def _share(self, load: Load, engine: str, settings: str) -> float:
        """Return the share of good requests in all turns under a load; 0 if none was measured."""
        trials = {self._trial(load, engine, turn, settings) for turn in range(self.count)}
        records = (line for line in self.journal.records if line["trial"] in trials and line["kind"] == "turn")
        turns = cells_of(TrafficTurn, records)
        return sum(turn.good for turn in turns) / (sum(turn.sent for turn in turns) or 1)

    def _trial(self, load: Load, engine: str, turn: int, settings: str) -> str:
        need = self.servers.demand
        which = f"{self.model}/{load.name}/{load.shrink}/{load.seconds}/{len(load.asks)}"
        return f"{which}/{engine}/{settings}/{need.cache_bytes}/{need.threads}/{turn}"


def case_of(load: Load) -> dict[str, Any]:
    """Return the fields of a `TrafficCell` that name a load."""
    per_minute = None if load.rate is None else round(60 * load.rate)
    return {"workload": load.workload, "shrink": load.shrink, "clients": load.clients, "per_minute": per_minute}
