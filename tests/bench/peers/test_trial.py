from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.journal import Journal
from bench.peers.analyse import cells
from bench.peers.engines import ENGINES, Demand
from bench.peers.pool import Pool
from bench.peers.trial import Participant, Schedule, Trial
from tests.bench.peers.fake import start

NEED = Demand(requests=1, prompt=4, threads=1, token_bytes=1, head_dim=64, groups=3)
PROMPTS = [[1, 2, 3, 4]] * 4


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    made = Pool(lambda engine, module: start(tmp_path), 20.0, lambda: 10**12)
    yield made
    made.close()


def participant(name: str, model: Path, fixed_size: bool = False, **options: Any) -> Participant:
    def chosen(need: Demand) -> dict[str, Any]:
        return options | ({"size": need.requests} if fixed_size else {})

    engine = replace(ENGINES[name], options=chosen, fixed_size=fixed_size)
    return Participant(engine, model, lambda requests: replace(NEED, requests=requests))


def make_trial(
    pool: Pool, tmp_path: Path, resume: bool = False, report: Callable[[str], None] = lambda text: None
) -> Trial:
    journal = Journal(tmp_path, "journal", {}, resume)
    return Trial("p/4/0", PROMPTS, pool, journal, Schedule(count=2, steps=3, timeout=20.0), report)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.write_bytes(b"weights")
    return path


def kinds(trial: Trial, engine: str) -> list[tuple[str, int]]:
    return [(one["kind"], one["requests"]) for one in trial.journal.records if one.get("engine") == engine]


def test_prompts_run_once_for_all_numbers_of_requests(pool: Pool, tmp_path: Path, model: Path) -> None:
    trial = make_trial(pool, tmp_path)
    trial.run([participant("vllm", model)], [2, 4])
    assert kinds(trial, "vllm") == [
        ("start", 4), ("first", 4), ("laps", 4), ("laps", 4), ("laps", 2), ("laps", 2), ("memory", 4)
    ]  # fmt: skip


def test_an_engine_of_fixed_size_starts_for_each_number_of_requests(pool: Pool, tmp_path: Path, model: Path) -> None:
    trial = make_trial(pool, tmp_path)
    trial.run([participant("ringkv", model, fixed_size=True)], [2, 4])
    assert [one for one in kinds(trial, "ringkv") if one[0] in ("start", "first")] == [
        ("start", 4), ("first", 4), ("start", 2), ("first", 2)
    ]  # fmt: skip


def test_turns_alternate(pool: Pool, tmp_path: Path, model: Path) -> None:
    trial = make_trial(pool, tmp_path)
    trial.run([participant("ringkv", model, fixed_size=True), participant("vllm", model)], [2])
    laps = [one["engine"] for one in trial.journal.records if one["kind"] == "laps"]
    assert laps == ["ringkv", "vllm"] * 2


def test_the_first_step_of_a_turn_is_not_counted(pool: Pool, tmp_path: Path, model: Path) -> None:
    trial = make_trial(pool, tmp_path)
    trial.run([participant("vllm", model)], [1])
    assert [len(one["laps_s"]) for one in trial.journal.records if one["kind"] == "laps"] == [3, 3]
    (tokens,) = [one["tokens"] for one in trial.journal.records if one["kind"] == "output"]
    assert tokens == list(range(100, 100 + 1 + 2 * 4))


def test_a_crash_costs_only_its_own_cells(pool: Pool, tmp_path: Path, model: Path) -> None:
    trial = make_trial(pool, tmp_path)
    warm = 3  # steps
    trial.run([participant("ringkv", model, fixed_size=True), participant("vllm", model, crash_at=warm + 4 + 2)], [4])
    found = {cell.engine: cell for cell in cells(trial.journal.records, "same", 16)}
    assert "SIGABRT" in (found["vllm"].why or "")
    assert found["ringkv"].why is None
    assert found["ringkv"].step_s is not None


def test_an_engine_that_failed_tries_again_with_fewer_requests(pool: Pool, tmp_path: Path, model: Path) -> None:
    trial = make_trial(pool, tmp_path)
    trial.run([participant("vllm", model, refuse_at=3 + 3)], [1, 4])  # in the prompts of 4, not in those of 1
    by_requests = {cell.requests: cell for cell in cells(trial.journal.records, "same", 16)}
    assert by_requests[4].why == "ValueError: no more"
    assert next(kind for kind, requests in kinds(trial, "vllm") if requests == 1) == "start"


def test_a_complete_trial_is_not_run_again(pool: Pool, tmp_path: Path, model: Path) -> None:
    make_trial(pool, tmp_path).run([participant("vllm", model)], [2])
    again = make_trial(pool, tmp_path, resume=True)
    before = list(again.journal.records)
    again.run([participant("vllm", model)], [2])
    assert again.journal.records == before


def test_each_engine_may_have_its_own_batch(pool: Pool, tmp_path: Path, model: Path) -> None:
    trial = make_trial(pool, tmp_path)
    small, large = participant("vllm", model), participant("ringkv", model, fixed_size=True)
    small.batch, large.batch = 1, 3
    trial.run([large, small], [3])
    found = {cell.engine: cell for cell in cells(trial.journal.records, "equal-bytes", 16)}
    assert (found["vllm"].requests, found["ringkv"].requests) == (1, 3)
    assert found["vllm"].ringkv_decodes is not None


def test_a_start_alone_is_timed_and_ended(pool: Pool, tmp_path: Path, model: Path) -> None:
    trial, one = make_trial(pool, tmp_path), participant("vllm", model)
    trial.start(one, 2)
    assert kinds(trial, "vllm") == [("start", 2)]
    assert one.loaded is None
    assert pool._loaded == {}
