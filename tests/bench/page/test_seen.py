import pytest

from bench.page.models import MODELS, entry_bytes
from bench.page.seen import Limits, step_need
from ringkv.bench.floor import Need
from tests.bench.page.made import cell, made, probes
from tests.plan.models import QWEN, SMOLLM2

GB = 1e9
SMOLLM2_STEP = 268_959_744 + 8 * 1920 * 23_040  # bytes


def test_the_models_are_those_that_the_tests_know() -> None:
    for name, known in (("smollm2", SMOLLM2), ("qwen2.5-coder-1.5b", QWEN)):
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads")
        for size in (*sizes, "head_dim", "context"):
            assert getattr(MODELS[name], size) == getattr(known, size)
    assert (entry_bytes("smollm2"), entry_bytes("qwen2.5-coder-1.5b")) == (23_040, 28_672)


def test_a_step_of_eight_requests_needs_the_weights_and_what_they_keep() -> None:
    assert step_need("smollm2", cell("ringkv", 7680, 8, kept=1920)).bytes == SMOLLM2_STEP


def test_a_cache_of_eight_bits_needs_about_half() -> None:
    full, small = (step_need("smollm2", cell(name, 7680, 8)).bytes - 268_959_744 for name in ("vllm", "llama.cpp-q8kv"))
    assert small / full == pytest.approx(34 / 64)


def test_without_probes_there_is_no_floor() -> None:
    assert Limits(made()).floor(Need(1, 1)) is None


def test_the_floor_is_the_probes_unless_somebody_was_faster() -> None:
    slow = made([cell("vllm", 7680, 8, kept=1920, step_s=SMOLLM2_STEP / (5 * GB))], limits=[probes(10 * GB, 1e15)])
    fast = made([cell("vllm", 7680, 8, kept=1920, step_s=SMOLLM2_STEP / (20 * GB))], limits=[probes(10 * GB, 1e15)])
    assert Limits(slow).floor(Need(30 * GB, 0)) == pytest.approx(3.0)
    assert Limits(fast).floor(Need(30 * GB, 0)) == pytest.approx(1.5)


def test_sparse_attention_implies_no_rate() -> None:
    sparse = made([cell("openvino-xattention", 7680, 1, prefill_tps=1e9)], limits=[probes(10 * GB, 1e12)])
    assert Limits(sparse).floor(Need(1, 2e12)) == pytest.approx(2.0)
