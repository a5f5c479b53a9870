"""Options that are left open, against the defaults."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringkv.base.errors import BudgetTooSmall, InvalidRequest
from ringkv.base.ranks import Rank
from ringkv.base.selectors import SnapKV
from ringkv.models.config import parse_config
from ringkv.plan import complete
from ringkv.plan.shapes import configurations
from tests.plan.models import LLAMA_8B, QWEN, SMOLLM2
from tests.plan.resolved import DEEPSEEK, DIRECTORY, resolved
from tests.refusals import refusal


def test_the_defaults_are_snapstream_over_the_whole_context(tmp_cache: Path) -> None:
    engine = resolved()
    assert (engine.kv.policy, engine.kv.budget, engine.capacity) == ("snapstream", 2048, 2048)
    assert (engine.prompt_tokens, engine.chunk, engine.slots, engine.lanes) == (8192, 512, 1, 1)
    assert (engine.dtype, engine.device, engine.model_dir) == ("bfloat16", "cpu", DIRECTORY)
    assert engine.cache_dir == tmp_cache


def test_chunks_are_larger_on_a_gpu() -> None:
    assert resolved(LLAMA_8B, device="cuda").chunk == resolved(LLAMA_8B, device="cuda:1").chunk == 2048
    assert resolved(LLAMA_8B, device="cuda", chunk=256).chunk == 256
    assert resolved(LLAMA_8B, device="cpu").chunk == 512


def test_long_contexts_stage_32k_by_default() -> None:
    assert resolved(LLAMA_8B).prompt_tokens == 32768
    assert resolved(LLAMA_8B, prompt_tokens=100_000).prompt_tokens == 100_352  # 196 chunks of 512


def test_every_option_reaches_the_engine() -> None:
    engine = resolved(
        kv_policy="streaming",
        kv_budget=640,
        kv_sinks=8,
        kv_recent="10%",
        kv_window=16,
        kv_kernel=7,
        kv_pooling="avg",
        kv_elastic=False,
        slots=3,
        prompt_tokens=1000,
        chunk=256,
        lanes=2,
        dtype="float32",
        weights="bf16",
        graphs="off",
        threads=5,
    )
    kv = engine.kv
    assert (kv.policy, kv.budget, kv.sinks, kv.recent, kv.elastic) == ("streaming", 640, 8, 0.1, False)
    assert kv.select == SnapKV(window=16, kernel=7, pooling="avg")
    assert (engine.slots, engine.prompt_tokens, engine.chunk) == (3, 1024, 256)
    assert (engine.lanes, engine.staged_tokens) == (3, 2 * 1024 + 1024)  # a lane for each slot, and short prompts
    assert (engine.dtype, engine.graphs, engine.threads) == ("float32", "off", 5)


def test_weights_of_other_bits_are_refused_with_those_there_are() -> None:
    with refusal("weights", "'int5'.* bf16, int8, int4"):
        resolved(weights="int5")


def test_compression_is_of_the_longest_prompt() -> None:
    assert resolved(kv_compression="4x").capacity == 2048
    assert resolved(kv_compression="4x", prompt_tokens=7168).capacity == 1792
    assert resolved(QWEN, kv_compression=16, prompt_tokens=16384).capacity == 1024


def test_the_full_cache_holds_the_longest_prompt_and_an_output() -> None:
    assert resolved(QWEN, kv_policy="full", prompt_tokens=8192).capacity == 8192 + 1024
    assert resolved(QWEN, kv_policy="full", prompt_tokens=8192, output_tokens=100).capacity == 8192 + 100
    assert resolved(kv_policy="full").capacity == 8192  # the context is the end of it


def test_a_full_cache_may_have_a_budget() -> None:
    assert resolved(kv_policy="full", kv_budget=1024).capacity == 1024


def test_a_budget_over_the_context_is_the_context() -> None:
    assert resolved(kv_budget=100_000).capacity == 8192
    assert resolved(replace(SMOLLM2, context=1024)).capacity == 1024


@given(context=st.integers(64, 5000), chunk=st.integers(1, 1024), data=st.data())
def test_the_prompt_limit_is_whole_chunks_inside_the_context(context: int, chunk: int, data: st.DataObject) -> None:
    requested = data.draw(st.integers(1, context))
    model = replace(SMOLLM2, context=context)
    engine = resolved(model, chunk=chunk, prompt_tokens=requested, kv_policy="full", graphs="off")
    assert engine.prompt_tokens % engine.chunk == 0
    assert engine.prompt_tokens <= context
    assert engine.chunk <= chunk
    chunks = engine.prompt_tokens // engine.chunk
    assert engine.prompt_tokens > requested - chunks  # short by less than a token per chunk


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({"kv_budget": 19, "kv_sinks": 4, "kv_recent": 16}, "kv_budget 19 .*4 sinks and 16 recent; raise it to 20"),
        ({"kv_budget": 4, "kv_policy": "streaming"}, "kv_budget 4 .*4 sinks and 1 recent; raise it to 5"),
        ({"kv_budget": 40, "kv_policy": "snapkv"}, "40 .*32 in its window and 10 for the output and 1 selected.* 43,"),
    ],
)
def test_a_budget_that_a_policy_cannot_work_with_is_refused(options: dict[str, Any], numbers: str) -> None:
    with pytest.raises(BudgetTooSmall, match=numbers):
        resolved(**options)
    assert resolved(**{**options, "kv_budget": options["kv_budget"] + 30}).capacity == options["kv_budget"] + 30


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"kv_policy": "lru"}, "kv_policy", "full, streaming, snapkv, snapstream"),
        ({"kv_budget": 0}, "kv_budget", "at least 1"),
        ({"kv_budget": 512, "kv_compression": "4x"}, "kv_compression", "leave one out"),
        ({"kv_policy": "full", "kv_compression": "4x"}, "kv_compression", "keeps every token"),
        ({"kv_compression": "four"}, "kv_compression", "such as 4x"),
        ({"kv_recent": "100%"}, "kv_recent", "such as 25%"),
        ({"kv_sinks": -1}, "kv_sinks", "at least 0"),
        ({"kv_window": 0}, "kv_window", "at least 1"),
        ({"kv_kernel": 4}, "kv_kernel", "odd"),
        ({"kv_pooling": "sum"}, "kv_pooling", "avg, max"),
        ({"prompt_tokens": 9000}, "prompt_tokens", "8,192"),
        ({"prompt_tokens": 0}, "prompt_tokens", "at least 1"),
        ({"slots": 0}, "slots", "at least 1"),
        ({"lanes": 0}, "lanes", "at least 1"),
        ({"chunk": 0}, "chunk", "at least 1"),
        ({"threads": 0}, "threads", "at least 1"),
        ({"dtype": "int8"}, "dtype", "bfloat16"),
        ({"dtype": "float16"}, "dtype", "bfloat16 or float32"),
        ({"graphs": "yes"}, "graphs", "auto, compiled, background, off"),
        ({"expert_parallel": True}, "expert_parallel", "needs several ranks; set tensor_parallel, or leave it out"),
        ({"expert_parallel": True, "tensor_parallel": 3}, "expert_parallel", "no experts; leave it out"),
    ],
)
def test_an_invalid_option_is_refused_by_name(options: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as error:
        resolved(**options)
    assert error.value.param == param


def test_far_more_threads_than_cores_are_refused_with_the_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)))
    assert resolved(threads=24).threads == 24
    with refusal("threads", "5,000.* 24"):
        resolved(threads=5000)


def test_threads_are_the_usable_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complete.os, "sched_getaffinity", lambda _: {3, 5, 7}, raising=False)
    assert resolved().threads == 3


@pytest.mark.parametrize("drafts", [-1, 8])
def test_drafts_have_a_minimum_and_a_maximum(drafts: int) -> None:
    with pytest.raises(InvalidRequest, match="speculate"):
        resolved(speculate=drafts)


def test_ranks_have_whole_experts_if_that_is_requested() -> None:
    mixtral = parse_config(dict(configurations()["mixtral-8x7b"]))
    split, whole = (resolved(mixtral, 10**13, tensor_parallel=4, expert_parallel=one) for one in (None, True))
    assert (split.rank, whole.rank) == (Rank(0, 4), Rank(0, 4, expert_parallel=True))
    assert whole.rank.largest == Rank(3, 4, expert_parallel=True)


@pytest.mark.parametrize(
    ("slots", "ranks", "requested", "found"),
    [
        (8, 4, None, (8, "slots")),
        (10, 4, None, (12, "slots")),  # each rank has as many
        (3, 4, None, (3, "heads")),  # a rank would have none
        (8, 1, None, (8, "heads")),
        (8, 4, "heads", (8, "heads")),
        (3, 4, "slots", (4, "slots")),
    ],
)
def test_ranks_divide_the_slots_of_latents_if_each_gets_one(
    slots: int, ranks: int, requested: str | None, found: tuple[int, str]
) -> None:
    engine = resolved(DEEPSEEK, slots=slots, tensor_parallel=ranks, attention_parallel=requested)
    assert (engine.slots, engine.attention_parallel) == found


def test_ranks_divide_the_heads_of_models_without_latents() -> None:
    assert resolved(slots=3, tensor_parallel=3).attention_parallel == "heads"
    with refusal("attention_parallel", "latent attention"):
        resolved(slots=3, tensor_parallel=3, attention_parallel="slots")
    with refusal("attention_parallel", "heads, slots"):
        resolved(attention_parallel="rows")
