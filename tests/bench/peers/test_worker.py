import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench.peers.worker import Worker, WorkerFailed
from tests.bench.peers.fake import REPOSITORY, start

SOON = 20.0


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    made = start(tmp_path)
    yield made
    made.kill()


def load(worker: Worker, **options: int) -> None:
    worker.call("load", SOON, model="any", options=options)


def test_every_request_gets_one_token_a_step_and_is_timed(worker: Worker) -> None:
    load(worker)
    begun = worker.call("begin", SOON, prompts=[[1, 2], [3, 4]])
    assert begun["tokens"] == [[100, 101], [101]]  # the first decodes while the second's prompt runs
    assert 0 < begun["first_s"][0] <= begun["first_s"][1]
    steps = worker.call("steps", SOON, count=3)
    assert steps["tokens"] == [[102, 103, 104], [102, 103, 104]]
    assert len(steps["laps_s"]) == 3


def test_the_last_prompts_go_on_when_fewer_are_kept(worker: Worker) -> None:
    load(worker)
    worker.call("begin", SOON, prompts=[[1], [2], [3]])
    worker.call("keep", SOON, requests=1)
    assert [len(tokens) for tokens in worker.call("steps", SOON, count=2)["tokens"]] == [0, 0, 2]
    assert worker.call("end", SOON)["rss_bytes"] > 1_000_000


def test_a_worker_is_stopped_between_calls(worker: Worker) -> None:
    load(worker)
    process = psutil.Process(worker._process.pid)
    until = time.monotonic() + SOON
    while process.status() != psutil.STATUS_STOPPED and time.monotonic() < until:
        time.sleep(0.01)
    assert process.status() == psutil.STATUS_STOPPED


def test_an_error_of_the_engine_is_raised_and_the_worker_lives(worker: Worker) -> None:
    with pytest.raises(WorkerFailed, match="ValueError: the model is broken"):
        worker.call("load", SOON, model="broken", options={})
    load(worker)
    assert worker.alive


def test_a_crash_is_named_by_its_signal(worker: Worker) -> None:
    load(worker, crash_at=1)
    with pytest.raises(WorkerFailed, match="SIGABRT"):
        worker.call("begin", SOON, prompts=[[1]])


def test_a_worker_that_does_not_reply_in_time_is_ended(worker: Worker) -> None:
    load(worker, hang_at=1)
    with pytest.raises(WorkerFailed, match="no reply to begin"):
        worker.call("begin", 0.3, prompts=[[1]])
    assert not worker.alive


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_stopped_worker_ends_with_its_parent(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; from tests.bench.peers.fake import start\n"
        f"w = start(Path({str(tmp_path)!r})); w.call('load', 20, model='any', options={{}}); print(w._process.pid)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    until = time.monotonic() + SOON
    while psutil.pid_exists(int(done.stdout)) and not is_gone(int(done.stdout)) and time.monotonic() < until:
        time.sleep(0.01)
    assert is_gone(int(done.stdout))


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
