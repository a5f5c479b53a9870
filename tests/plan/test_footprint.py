"""Footprints compared with figures worked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringkv.base.errors import InvalidRequest
from ringkv.plan.footprint import Footprint, read_bytes, token_bytes, weight_bytes
from ringkv.plan.shapes import known


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("deepseek-r1", 61 * (512 + 64) * 2),  # 70,272
        ("llama-3.1-8b", 32 * 2 * 8 * 128 * 2),  # 131,072
        ("llama-3.1-70b", 80 * 2 * 8 * 128 * 2),  # 327,680
        ("smollm2", 30 * 2 * 3 * 64 * 2),  # 23,040
        ("qwen2.5-coder-1.5b", 28 * 2 * 2 * 128 * 2),  # 28,672
    ],
)
def test_a_token_takes_the_bytes_worked_out_by_hand(name: str, by_hand: int) -> None:
    assert token_bytes(known(name), "bfloat16") == by_hand


def test_the_figures_that_are_quoted_in_the_docs_hold() -> None:
    names = ("deepseek-r1", "llama-3.1-8b", "llama-3.1-70b", "smollm2", "qwen2.5-coder-1.5b")
    figures = [token_bytes(known(name), "bfloat16") for name in names]
    assert figures == [70_272, 131_072, 327_680, 23_040, 28_672]


def test_one_128k_lane_of_llama_8b_stages_17_gigabytes() -> None:
    assert 131_072 * token_bytes(known("llama-3.1-8b"), "bfloat16") == 17_179_869_184


def test_float32_takes_twice_the_bytes_of_bfloat16() -> None:
    shape = known("smollm2")
    assert token_bytes(shape, "float32") == 2 * token_bytes(shape, "bfloat16")
    assert weight_bytes(shape, "float32") == 2 * weight_bytes(shape, "bfloat16") == 134_515_008 * 4


def test_quantised_layers_take_eight_or_five_bits_and_tables_always_eight() -> None:
    tied, untied = known("smollm2"), known("llama-3.1-8b")
    assert weight_bytes(tied, "int8") == 134_515_008
    assert weight_bytes(tied, "int4") == (134_515_008 - 28_311_552) * 5 // 8 + 28_311_552
    embedding = head = 128_256 * 4096
    layers = 8_030_261_248 - embedding - head
    assert weight_bytes(untied, "int4", ranks=4) == (layers * 5 // 8 + embedding + head) // 4
    assert read_bytes(untied, "int4") == layers * 5 // 8 + head
    assert read_bytes(untied, "bfloat16") == 2 * (layers + head)


def test_a_cache_is_not_stored_in_the_bits_of_weights() -> None:
    with pytest.raises(InvalidRequest, match=r"int8.*bfloat16"):
        token_bytes(known("smollm2"), "int8")


def test_tensor_parallel_ranks_share_weights_and_heads() -> None:
    shape = known("llama-3.1-70b")
    assert weight_bytes(shape, "bfloat16", ranks=8) == 70_553_706_496 * 2 // 8
    assert token_bytes(shape, "bfloat16", ranks=8) == 327_680 // 8
    assert token_bytes(shape, "bfloat16", ranks=16) == 327_680 // 8


def test_an_unknown_dtype_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match=r"int3.*bfloat16"):
        token_bytes(known("smollm2"), "int3")


sizes = st.integers(min_value=1, max_value=10**9)


@given(
    entries=st.integers(1, 10**5),
    token=sizes,
    weights=sizes,
    staging=sizes,
    reserve=sizes,
    sampler=sizes,
    memory=sizes,
)
def test_the_slots_that_fit_do_fit_and_one_more_does_not(
    entries: int, token: int, weights: int, staging: int, reserve: int, sampler: int, memory: int
) -> None:
    need = Footprint(entries * token, weights, staging, reserve, sampler=sampler)
    slots = need.slots_in(memory)
    assert slots == 0 or weights + staging + reserve + slots * (entries * token + sampler) <= memory
    assert weights + staging + reserve + (slots + 1) * (entries * token + sampler) > memory
