from pathlib import Path
from typing import Any, cast

import pytest

from bench.journal import Journal
from bench.peers.worker import Worker, WorkerFailed
from bench.traffic.engines import Demand
from bench.traffic.loads import Load, Texts
from bench.traffic.server import Server
from bench.traffic.traces import Ask, Lengths
from bench.traffic.turns import Servers, Turns
from tests.bench.traffic.test_figures import reply

NEED = Demand("m", 1024, 100, 10**6, 4, 400, 256, 2)


class FakeServer:
    def __init__(self, engine: str, log: list[str]) -> None:
        self.engine, self.url, self._log, self.alive = engine, f"http://{engine}", log, True

    def wait(self, path: str, seconds: float) -> float:
        self._log.append(f"start {self.engine}")
        return 1.0

    def resume(self) -> None:
        self._log.append(f"resume {self.engine}")

    def pause(self) -> None:
        self._log.append(f"pause {self.engine}")

    def kill(self) -> None:
        self._log.append(f"end {self.engine}")


class FakeClients:
    """Answers each load; an engine in `slow` gives late answers, one in `broken` none."""

    def __init__(self, slow: tuple[str, ...] = (), broken: tuple[str, ...] = ()) -> None:
        self.slow, self.broken = slow, broken
        self.calls: list[tuple[str, list[str]]] = []

    def call(self, verb: str, timeout: float, **fields: Any) -> dict[str, Any]:
        engine = fields["url"].removeprefix("http://")
        self.calls.append((engine, [prompt for _, prompt, *_ in fields["asks"]]))
        if engine in self.broken:
            raise WorkerFailed("nothing came")
        first = 9.0 if engine in self.slow else 0.1
        return reply(*((first, [0.01] * (output - 1), output, "") for *_, output in fields["asks"]))


class FakeTexts:
    def ask(self, scope: str, name: str, wanted: Lengths, part: int) -> Ask:
        return Ask(wanted.arrival, f"{scope}/{name}", wanted.prompt, wanted.output)


def turns(tmp_path: Path, clients: FakeClients, log: list[str], count: int = 2, available: int = 10**12) -> Turns:
    servers = Servers(
        start=lambda engine, need: cast(Server, FakeServer(engine, log)),
        demand=NEED,
        ready=dict.fromkeys("ABC", "/health"),
        weights=dict.fromkeys("ABC", 10),
        available=lambda: available,
        report=lambda text: None,
    )
    journal = Journal(tmp_path, "traffic", {"run": "r"}, resume=True)
    return Turns(servers, cast(Worker, clients), cast(Texts, FakeTexts()), journal, "m", count, 0.5, lambda text: None)


def load(rate: float | None = None, requests: int = 3) -> Load:
    asks = tuple(Lengths(0.0, 50, 20) for _ in range(requests))
    return Load("short", asks, clients=None if rate else 2, rate=rate, seconds=10.0 if rate else None)


SETTINGS = dict.fromkeys("ABC", "s")


def test_engines_take_turns_and_only_the_one_that_is_measured_runs(tmp_path: Path) -> None:
    clients, log = FakeClients(), list[str]()
    turns(tmp_path, clients, log).measure([load()], ["A", "B"], SETTINGS)
    assert [engine for engine, _ in clients.calls] == ["A", "A", "B", "B", "A", "B"]  # a warm-up before each first turn
    moves = [move for move in log if not move.startswith("start")]
    assert moves == [f"{verb} {engine}" for engine in "ABAB" for verb in ("resume", "pause")]


def test_no_text_is_sent_twice_so_no_prefix_cache_has_seen_it(tmp_path: Path) -> None:
    clients = FakeClients()
    turns(tmp_path, clients, []).measure([load(1.0), load(2.0)], ["A"], SETTINGS)
    texts = [prompt for _, prompts in clients.calls for prompt in prompts]
    assert len(texts) == len(set(texts)) == 3 + 2 * 2 * 3


def test_every_engine_gets_the_same_texts(tmp_path: Path) -> None:
    clients = FakeClients()
    turns(tmp_path, clients, []).measure([load()], ["A", "B"], SETTINGS)
    sent = {engine: [prompts for name, prompts in clients.calls if name == engine] for engine in "AB"}
    assert sent["A"] == sent["B"]


def test_an_engine_that_misses_the_objective_gets_no_higher_rate(tmp_path: Path) -> None:
    clients = FakeClients(slow=("B",))
    measured = turns(tmp_path, clients, [], count=1)
    measured.measure([load(1.0), load(2.0)], ["A", "B"], SETTINGS)
    found = [(one["engine"], one["per_minute"]) for one in measured.journal.records if one["kind"] == "turn"]
    assert found == [("A", 60), ("B", 60), ("A", 120)]


def test_an_engine_that_fails_is_ended_and_the_others_go_on(tmp_path: Path) -> None:
    log = list[str]()
    measured = turns(tmp_path, FakeClients(broken=("A",)), log, count=1)
    measured.measure([load()], ["A", "B"], SETTINGS)
    kinds = [(one["engine"], one["kind"], one.get("why")) for one in measured.journal.records if one["kind"] != "done"]
    assert kinds == [("A", "failed", "nothing came"), ("B", "turn", None)]
    assert "end A" in log


def test_turns_in_the_journal_are_not_repeated(tmp_path: Path) -> None:
    turns(tmp_path, FakeClients(), [], count=1).measure([load()], ["A"], SETTINGS)
    clients = FakeClients()
    again = turns(tmp_path, clients, [], count=2)
    again.measure([load()], ["A", "B"], SETTINGS)
    found = [one["engine"] for one in again.journal.records if one["kind"] == "turn"]
    assert found == ["A", "B", "A", "B"]  # the first of them from the journal
    assert [engine for engine, _ in clients.calls] == ["B", "B", "A", "A", "B"]


@pytest.mark.parametrize(("available", "ended"), [(10**12, []), (0, ["end A", "end B"])])
def test_idle_servers_are_ended_only_if_memory_is_short(tmp_path: Path, available: int, ended: list[str]) -> None:
    log = list[str]()
    turns(tmp_path, FakeClients(), log, count=1, available=available).measure([load()], ["A", "B", "C"], SETTINGS)
    assert [move for move in log if move.startswith("end")] == ended
