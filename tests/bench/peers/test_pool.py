from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.peers.pool import RESERVE, Pool
from bench.peers.worker import WorkerFailed
from tests.bench.peers.fake import start

MODEL = Path("any")


class Memory:
    def __init__(self) -> None:
        self.free = 10 * RESERVE

    def __call__(self) -> int:
        return self.free


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def pool(tmp_path: Path, memory: Memory) -> Iterator[Pool]:
    made = Pool(lambda engine, module: start(tmp_path), 20.0, memory)
    yield made
    made.close()


def test_a_worker_of_the_same_options_is_used_again(pool: Pool) -> None:
    first, is_new = pool.take("vllm", "vllm", MODEL, {"slots": 1}, 0)
    pool.give_back(first)
    again, is_new_again = pool.take("vllm", "vllm", MODEL, {"slots": 1}, 0)
    assert again is first
    assert (is_new, is_new_again) == (True, False)


def test_the_least_recently_used_idle_worker_makes_room(pool: Pool, memory: Memory) -> None:
    old, _ = pool.take("vllm", "vllm", MODEL, {"slots": 1}, 0)
    busy, _ = pool.take("vllm", "vllm", MODEL, {"slots": 2}, 0)
    pool.give_back(old)
    memory.free = 0
    with pytest.raises(WorkerFailed, match="needs about"):
        pool.take("vllm", "vllm", MODEL, {"slots": 3}, 1)
    assert (old.worker.alive, busy.worker.alive) == (False, True)


def test_one_that_does_not_load_is_ended_with_its_reason(pool: Pool) -> None:
    with pytest.raises(WorkerFailed, match="the model is broken"):
        pool.take("vllm", "vllm", Path("broken"), {}, 0)
