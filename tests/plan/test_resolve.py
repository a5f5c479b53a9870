"""What fits in memory, against sums of bytes."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringkv.base.errors import DoesNotFit, InvalidRequest
from ringkv.plan.engine_footprint import RESERVE
from ringkv.plan.footprint import TEMPORARIES
from tests.plan.models import QWEN
from tests.plan.resolved import resolved
from tests.refusals import refusal

SMOLLM2_QUERIES = 30 * 9 * 32 * 64 * 2  # bytes of a lane's last 32 queries
QWEN_QUERIES = 28 * 12 * 32 * 128 * 2
# Bytes to sample from one slot: three planes of 4 bytes, two of 1, one of a bit, and temporaries.
SMOLLM2_SAMPLER = 49_152 * (14 + TEMPORARIES) + 49_152 // 8
QWEN_SAMPLER = 151_936 * (14 + TEMPORARIES) + 151_936 // 8


@given(memory=st.integers(RESERVE, 4 * RESERVE), chunk=st.integers(1, 40_000), slots=st.integers(1, 64))
@example(memory=1_543_714_304 * 2 + (2048 + 512) * 28_672 + QWEN_QUERIES + QWEN_SAMPLER + RESERVE, chunk=3, slots=1)
def test_what_is_resolved_fits_or_is_refused(memory: int, chunk: int, slots: int) -> None:
    try:
        engine = resolved(QWEN, memory, chunk=chunk, slots=slots, kv_budget=512, graphs="off", dtype="bfloat16")
    except DoesNotFit:
        least = 1_543_714_304 * 2 + (2048 + slots * 512) * 28_672 + QWEN_QUERIES + slots * QWEN_SAMPLER + RESERVE
        assert memory < least or chunk > 2048 / 2
        return
    held = (engine.prompt_tokens + engine.slots * engine.capacity) * 28_672 + QWEN_QUERIES + slots * QWEN_SAMPLER
    assert 1_543_714_304 * 2 + held + RESERVE <= memory


def test_a_prompt_limit_left_open_is_halved_until_it_fits() -> None:
    weights, token = 1_543_714_304 * 2, 28_672
    memory = weights + RESERVE + QWEN_QUERIES + QWEN_SAMPLER + (8192 + 2048) * token  # staging, one slot
    assert resolved(QWEN, memory).prompt_tokens == 8192
    assert resolved(QWEN, memory - 1).prompt_tokens == 4096
    with pytest.raises(DoesNotFit):
        resolved(QWEN, memory - 1, prompt_tokens=8192)


def test_short_prompts_have_staging_of_their_own_unless_memory_is_short() -> None:
    weights, token = 134_515_008 * 2, 23_040
    rest = weights + RESERVE + 2 * SMOLLM2_SAMPLER
    short = rest + 2 * SMOLLM2_QUERIES + (8192 + 4096 + 2 * 2048) * token
    assert [
        (one.lanes, one.staged_tokens) for one in (resolved(slots=2, memory=memory) for memory in (short, short - 1))
    ] == [
        (2, 8192 + 4096),
        (1, 8192),
    ]
    assert resolved(slots=40).lanes == 16
    assert resolved(slots=4, prompt_tokens=1024).staged_tokens == 2 * 1024


def test_too_many_slots_are_refused_with_the_bytes_and_what_would_fit() -> None:
    weights, token = 134_515_008 * 2, 23_040
    memory = weights + RESERVE + SMOLLM2_QUERIES + 5 * SMOLLM2_SAMPLER + (8192 + 5 * 2048) * token
    assert resolved(slots=5, prompt_tokens=8192, memory=memory).slots == 5
    with pytest.raises(DoesNotFit, match=r"47\.2 MB .* 2\.66 MB .*5 slots"):
        resolved(slots=6, prompt_tokens=8192, memory=memory)


@pytest.mark.parametrize(
    ("memory", "remedy"),
    [(10**9, "smaller model or budget"), (134_515_008 * 2 + RESERVE + 8000 * 23_040, "lower prompt_tokens")],
)
def test_if_no_slot_fits_the_remedy_names_what_would_help(memory: int, remedy: str) -> None:
    with pytest.raises(DoesNotFit, match=remedy):
        resolved(prompt_tokens=8192, memory=memory)


def test_4_bit_weights_are_suggested_if_they_make_everything_fit() -> None:
    whole, packed = 1_543_714_304 * 2, ((1_543_714_304 - 151_936 * 1536) * 5 + 151_936 * 1536 * 8) // 8
    rest = RESERVE + QWEN_QUERIES + 2 * QWEN_SAMPLER + (4096 + 2 * 2048) * 28_672
    requested = {"slots": 2, "prompt_tokens": 4096}
    offer = f', or use weights="int4", which take {packed / 1e9:.3g} GB; then everything fits'
    for memory in (packed + rest, whole + rest - 1):
        with pytest.raises(DoesNotFit) as refused:
            resolved(QWEN, memory, **requested)
        assert str(refused.value).endswith(offer)
    assert resolved(QWEN, packed + rest, weights="int4", **requested).slots == 2
    for less in ({"memory": packed + rest - 1}, {"memory": packed + rest, "dtype": "float32"}):
        with pytest.raises(DoesNotFit) as refused:
            resolved(QWEN, **less, **requested)
        assert "int4" not in str(refused.value)


def test_the_prefix_store_is_counted_and_is_dropped_first_if_memory_is_short() -> None:
    weights, token = 134_515_008 * 2, 23_040
    memory = weights + RESERVE + SMOLLM2_QUERIES + SMOLLM2_SAMPLER + (8192 + 2048) * token
    assert resolved().store_bytes == 0
    assert resolved(prefix_store="1.5GB").store_bytes == 1_500_000_000
    assert resolved(prefix_store="auto", memory=memory + 10**9).store_bytes == 10**9
    short = resolved(prefix_store="auto", memory=memory + 9 * 10**8)
    assert (short.store_bytes, short.prompt_tokens) == (0, 8192)
    with pytest.raises(DoesNotFit, match="1,000 MB of prefix store"):
        resolved(prefix_store="1GB", prompt_tokens=8192, memory=memory)


@pytest.mark.parametrize("store", [None, 0, "10MB"])
def test_turns_that_continue_need_room_for_a_slot_in_the_prefix_store(store: str | int | None) -> None:
    with pytest.raises(InvalidRequest, match=r"47\.2 MB") as refused:
        resolved(kv_turns="continue", prefix_store=store)
    assert refused.value.param == "prefix_store"
    assert resolved(kv_turns="continue", prefix_store="auto").kv.turns == "continue"


def test_a_store_without_room_for_a_block_is_refused() -> None:
    with refusal("prefix_store", r"64 tokens, 1\.47 MB"):
        resolved(prefix_store="1MB")


def test_slots_whose_caches_fit_are_refused_if_their_sampler_state_does_not_fit() -> None:
    caches = 1_543_714_304 * 2 + RESERVE + QWEN_QUERIES + (2048 + 256 * 64) * 28_672
    requested = {"slots": 256, "kv_budget": 64, "prompt_tokens": 2048}
    with pytest.raises(DoesNotFit, match=r"8\.22 MB"):
        resolved(QWEN, caches + 10**9, **requested)
    assert resolved(QWEN, caches + 256 * QWEN_SAMPLER, **requested).slots == 256
