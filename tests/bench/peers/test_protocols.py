from dataclasses import replace

import pytest

from bench.peers.engines import ENGINES, Need
from bench.peers.protocols import batch_in, groups
from bench.peers.workload import budget

SMOLLM2 = Need(requests=1, prompt=7680, threads=2, token_bytes=23040, head_dim=64, groups=3)
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
