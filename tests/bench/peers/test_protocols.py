from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.journal import Journal
from bench.peers.engines import ENGINES, Demand
from bench.peers.pool import Pool
from bench.peers.protocols import Bench, Lengths, batch_in, equal_bytes, groups, resident, same
from bench.peers.trial import Schedule, needed_bytes
from bench.peers.workload import budget
from tests.bench.peers.fake import start

SMOLLM2 = Demand(requests=1, prompt=7680, threads=2, token_bytes=23040, head_dim=64, groups=3)
BYTES = 1_500_000_000


def test_groups_fit_into_memory_and_ringkv_is_in_each() -> None:
    sizes = {"ringkv": 2, "a": 5, "b": 3, "c": 7, "d": 1}
    packed = groups(sizes, 10, "ringkv")
    assert packed == [["ringkv", "a", "b"], ["ringkv", "c", "d"]]
    assert all(sum(sizes[name] for name in group) <= 10 for group in packed)


def test_one_that_is_too_large_goes_alone() -> None:
    assert groups({"ringkv": 2, "a": 1, "b": 99}, 10, "ringkv") == [["ringkv", "a"], ["ringkv", "b"]]


def test_without_ringkv_groups_are_of_the_others() -> None:
    assert groups({"a": 1, "b": 1}, 10, "ringkv") == [["a", "b"]]
    assert groups({"ringkv": 1}, 10, "ringkv") == [["ringkv"]]


@pytest.mark.parametrize(
    ("name", "tokens_of"),
    [
        ("llama.cpp", lambda n: n * 8192),
        ("ringkv", lambda n: n * budget(7680) + 7680 + 96),
        ("openvino-evict", lambda n: (n - 1) * (budget(7680) + 64) + 8192),
    ],
)
def test_a_batch_is_the_largest_that_fits_with_what_is_staged(name: str, tokens_of) -> None:  # type: ignore[no-untyped-def]
    n = batch_in(ENGINES[name], SMOLLM2, BYTES)
    assert tokens_of(n) * 23040 <= BYTES < tokens_of(n + 1) * 23040


def test_quantised_keys_and_values_let_more_requests_in() -> None:
    assert batch_in(ENGINES["llama.cpp"], SMOLLM2, BYTES) == 7
    assert batch_in(ENGINES["llama.cpp-q8kv"], SMOLLM2, BYTES) == 14


def test_bytes_for_no_request_make_an_empty_batch() -> None:
    assert batch_in(ENGINES["llama.cpp"], SMOLLM2, 1000) == 0


def test_at_equal_bytes_no_engine_is_given_more_memory() -> None:
    need = replace(SMOLLM2, requests=8, cache_bytes=BYTES)
    blocks = ENGINES["openvino"].options(need)["scheduler"]["num_kv_blocks"]
    assert blocks * 32 * 23040 <= BYTES
    assert ENGINES["vllm"].options(need)["cache_bytes"] <= BYTES


@pytest.mark.parametrize(("head_dim", "bytes_a_token"), [(64, 13680), (128, 16576)])  # as OpenVINO itself reports them
def test_bytes_of_openvinos_8_bit_tokens(head_dim: int, bytes_a_token: int) -> None:
    at_16_bits = {64: 30 * 3 * 64 * 4, 128: 28 * 2 * 128 * 4}[head_dim]
    assert ENGINES["openvino-u8kv"].shares(head_dim) * at_16_bits == bytes_a_token


SMALL = Demand(requests=1, prompt=64, threads=1, token_bytes=1000, head_dim=64, groups=3)
BOTH = Lengths([64], [64])
ONE = needed_bytes(ENGINES["vllm"], SMALL, 0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Makes a bench of fake engines with this many bytes of memory."""
    pool = Pool(lambda engine, module: start(tmp_path), 20.0, lambda: 10**12)
    model = tmp_path / "model"
    model.write_bytes(b"")

    def made(*engines: str, memory: int = 10**12, resume: bool = False) -> Bench:
        return Bench(
            engines=dict.fromkeys(engines, model),
            base=SMALL,
            prompts=lambda count, length: [[1] * length] * count,
            pool=pool,
            journal=Journal(tmp_path, "journal", {}, resume),
            schedule=Schedule(count=1, steps=2, timeout=20.0),
            memory=memory,
            report=lambda text: None,
        )

    yield made
    pool.close()


def measured(bench: Bench, kind: str) -> Counter[tuple[str, int]]:
    return Counter((one["engine"], one["requests"]) for one in bench.journal.records if one["kind"] == kind)


def test_lone_prompts_are_repeated(bench: Callable[..., Bench]) -> None:
    run = bench("ringkv", "openvino")
    same(run, BOTH, [1, 2], rounds=2, batch_rounds=1)
    assert measured(run, "laps") == {
        ("ringkv", 1): 2, ("openvino", 1): 2, ("ringkv", 2): 1, ("openvino", 2): 1
    }  # fmt: skip


def test_a_run_that_resumes_with_other_memory_measures_every_engine(bench: Callable[..., Bench]) -> None:
    first = bench("ringkv", "vllm", memory=3 * ONE)
    same(first, BOTH, [1], rounds=1, batch_rounds=0)
    again = bench("ringkv", "vllm", "openvino", resume=True)  # all of them fit together now
    same(again, BOTH, [1], rounds=1, batch_rounds=0)
    assert {name for name, _ in measured(again, "laps")} == {"ringkv", "vllm", "openvino"}


def test_complete_trials_are_not_measured_again(bench: Callable[..., Bench]) -> None:
    same(bench("ringkv", "vllm"), BOTH, [1], rounds=1, batch_rounds=0)
    again = bench("ringkv", "vllm", resume=True)
    same(again, BOTH, [1], rounds=1, batch_rounds=0)
    assert measured(again, "laps") == {("ringkv", 1): 1, ("vllm", 1): 1}


def test_at_equal_bytes_each_engine_has_its_own_batch_or_is_left_out(bench: Callable[..., Bench]) -> None:
    run = bench("ringkv", "vllm", "openvino")
    room = (
        2 * (64 + 512) * SMALL.token_bytes
    )  # two whole requests of OpenVINO; vLLM's blocks and its spare one are larger
    equal_bytes(run, room, 64, rounds=1)
    batches = dict(measured(run, "laps").keys())
    assert batches == {"ringkv": (room // 1000 - 64 - 48) // 32, "openvino": 2, "vllm": 1}
    run = bench("ringkv", "vllm")
    equal_bytes(run, 300_000, 64, rounds=1)
    assert {name for name, _ in measured(run, "laps")} == {"ringkv"}


def test_each_engine_starts_as_often_as_requested_and_is_alone_in_memory(bench: Callable[..., Bench]) -> None:
    run = bench("ringkv", "vllm")
    resident(run, 64, requests=2, starts=3)
    assert measured(run, "start") == {("ringkv", 2): 3, ("vllm", 2): 3}
    assert measured(run, "memory") == {("ringkv", 2): 1, ("vllm", 2): 1}
