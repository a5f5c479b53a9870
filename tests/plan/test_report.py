"""Against figures worked by hand."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ringkv.base.cache_spec import PlaneFormat, SlotFormat
from ringkv.base.config import DType
from ringkv.base.errors import InvalidRequest, UnknownModel
from ringkv.plan.footprint import TEMPORARIES
from ringkv.plan.report import PlanRequest, Report, find_shape, report
from ringkv.plan.shapes import known
from tests.refusals import refusal

GB = 10**9


def llama(request: PlanRequest) -> Report:
    return report(known("llama-3.1-8b"), request)


def test_llama_8b_in_80_gigabytes_has_2_full_contexts_and_169_compressed() -> None:
    plan = llama(PlanRequest(reserve=0, memory=80 * GB))
    token, weights = 131_072, 16_060_522_496
    queries = 32 * 32 * 32 * 128 * 2  # of the last 32 tokens, in 32 layers of 32 heads
    staging = 131_072 * token + queries
    left = 80 * GB - weights - staging
    assert (plan.token_bytes, plan.weight_bytes, plan.staging_bytes) == (token, weights, staging)
    full, small = plan.rows
    assert (full.cache, full.entries, full.slot_bytes, full.slots) == ("full", 131_072, 17_179_869_184, 2)
    assert (small.cache, small.entries, small.slot_bytes) == ("compressed", 2048, 268_435_456)
    sampler = 128_256 * (14 + TEMPORARIES) + 128_256 // 8
    assert plan.sampler_bytes == sampler
    assert small.slots == left // (2048 * token + sampler) == 169


def test_a_rank_of_eight_holds_an_eighth_of_llama_70b() -> None:
    one, eight = (report(known("llama-3.1-70b"), PlanRequest(tensor_parallel=ranks)) for ranks in (1, 8))
    assert (eight.token_bytes, eight.weight_bytes) == (one.token_bytes // 8, one.weight_bytes // 8)
    assert eight.rows[0].slot_bytes == one.rows[0].slot_bytes // 8


@pytest.mark.parametrize(
    ("tokens", "budget", "full", "compressed"),
    [(131_072, 32_768, 16, 64), (65_536, 16_384, 32, 128), (32_768, 8192, 64, 256)],
)
def test_sixteen_ranks_hold_as_many_slots_of_deepseek_r1_as_the_paper_says(
    tokens: int, budget: int, full: int, compressed: int
) -> None:
    """Batches of SnapStream (arXiv 2511.03092). Each rank has 9.5 GB for its own slots, and samples all tokens."""
    shape, asked = known("deepseek-r1"), PlanRequest(tensor_parallel=16, tokens=tokens, kv_budget=budget, reserve=0)
    fixed = report(shape, asked)
    memory = fixed.weight_bytes + fixed.staging_bytes + 9_500_000_000
    for row, slots in enumerate((full, compressed)):
        asked = replace(asked, memory=memory + slots * fixed.sampler_bytes)
        assert report(shape, asked).rows[row].slots == slots


def test_ranks_divide_the_slots_of_deepseek_r1_unless_they_divide_the_heads() -> None:
    shape, asked = known("deepseek-r1"), PlanRequest(tensor_parallel=16, tokens=131_072, memory=60 * GB, reserve=0)
    slots, heads = report(shape, asked), report(shape, replace(asked, attention_parallel="heads"))
    assert (slots.attention_parallel, heads.attention_parallel) == ("slots", "heads")
    assert slots.token_bytes == heads.token_bytes == 70_272  # staged by every rank
    assert slots.weight_bytes == heads.weight_bytes == 671_026_419_200 // 16
    assert slots.rows[0].slot_bytes == heads.rows[0].slot_bytes == 70_272 * 131_072
    left, slot, sampler = 60 * GB - slots.weight_bytes - slots.staging_bytes, 70_272 * 2048, slots.sampler_bytes
    assert heads.rows[1].slots == left // (slot + sampler)
    assert slots.rows[1].slots == 16 * (left // (slot + 16 * sampler))
    own, every = slots.rows[1], heads.rows[1]
    assert own.slots
    assert every.slots
    experts = 58 * 256 * 3 * 7168 * 2048 // 16  # bytes of a rank; a token leaves out 248 of 256 of them
    further = experts * ((248 / 256) ** every.slots - (248 / 256) ** own.slots)
    weights = every.step_bytes - every.slots * slot + further
    assert own.step_bytes == pytest.approx(weights + own.slots // 16 * slot, abs=2)


def test_the_slots_of_a_model_without_latents_are_not_divided() -> None:
    assert llama(PlanRequest(tensor_parallel=8)).attention_parallel == "heads"
    with refusal("attention_parallel", r"llama-3\.1-8b"):
        llama(PlanRequest(tensor_parallel=8, attention_parallel="slots"))


def test_a_step_reads_the_weights_and_every_slots_entries_at_the_memorys_pace() -> None:
    plan = llama(PlanRequest(reserve=0, memory=80 * GB, bandwidth=2 * 10**12))
    full = plan.rows[0]
    read = 7_504_924_672 * 2 + 2 * 17_179_869_184
    assert full.step_bytes == read
    assert full.step_seconds == pytest.approx(read / 2e12)
    assert full.tokens_per_second == pytest.approx(2 / (read / 2e12))


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_step_of_a_mixture_reads_the_experts_that_its_slots_are_expected_to_choose(ranks: int) -> None:
    """Mixtral: a token leaves out 6 of 8 experts, two tokens 8 x (3/4)^2 = 4.5, so they read 3.5; sixteen read 7.92."""
    expert, norms = 32 * 3 * 4096 * 14336, 65 * 4096
    others = 32 * (4096 * (2 * 4096 + 2 * 1024) + 8 * 4096) + 32_000 * 4096 + norms
    asked = PlanRequest(tokens=32_768, kv_budget=2048, tensor_parallel=ranks, bandwidth=10**12, reserve=0)
    shape = known("mixtral-8x7b")
    alone = report(shape, asked)
    fixed, (full, small) = alone.weight_bytes + alone.staging_bytes, (row.slot_bytes for row in alone.rows)
    assert alone.rows[0].step_bytes == (2 * expert + others) * 2 // ranks + full
    for row, slots, slot, chosen in ((0, 2, full, 3.5), (1, 16, small, 8 * (1 - 0.75**16))):
        memory = fixed + slots * (slot + alone.sampler_bytes)
        found = report(shape, replace(asked, memory=memory)).rows[row]
        assert found.slots == slots
        assert found.step_bytes == pytest.approx((chosen * expert + others) * 2 / ranks + slots * slot, abs=1)
        assert found.tokens_per_second == pytest.approx(slots * 10**12 / found.step_bytes)


def test_a_step_of_many_slots_reads_all_experts_of_deepseek_r1() -> None:
    """720 tokens leave out 256 x (248/256)^720 experts, below 1e-7; a rank reads all weights but embeddings."""
    asked = PlanRequest(tensor_parallel=16, tokens=131_072, memory=64 * GB, reserve=1 << 30)
    plan = report(known("deepseek-r1"), asked)
    row = plan.rows[1]
    embedding = 129_280 * 7168 // 16
    assert row.slots == 720
    assert row.step_bytes == pytest.approx(plan.weight_bytes - embedding + 720 // 16 * 2048 * 70_272, rel=1e-6)


def test_without_a_memory_no_slots_are_reported() -> None:
    row = llama(PlanRequest(reserve=0)).rows[0]
    assert (row.slots, row.step_seconds, row.tokens_per_second) == (None, None, None)
    one_slot = 17_179_869_184 + 128_256 * (14 + TEMPORARIES) + 128_256 // 8
    lane = 17_179_869_184 + 32 * 32 * 32 * 128 * 2
    assert row.total_bytes == 16_060_522_496 + lane + one_slot  # with the weights


def test_memory_smaller_than_the_weights_fits_no_slot() -> None:
    plan = llama(PlanRequest(reserve=0, memory=10 * GB, bandwidth=10**12))
    assert [(row.slots, row.tokens_per_second) for row in plan.rows] == [(0, 0.0), (0, 0.0)]


def test_slots_in_8_bits_are_smaller_and_more_of_them_fit_beside_plain_staging() -> None:
    plain, small = (
        llama(PlanRequest(reserve=0, memory=80 * GB, bandwidth=10**12, kv_format=one)) for one in ("plain", "int8")
    )
    # a byte per element, a scale per vector; the keys' center and four of them in float32
    slot = 32 * 8 * (2 * 2048 * (128 + 4) + 4 * 128 * (1 + 4))
    fixed, sampler = small.weight_bytes + small.staging_bytes, small.sampler_bytes
    row = small.rows[1]
    assert (small.kv_format, small.token_bytes, small.staging_bytes) == ("int8", plain.token_bytes, plain.staging_bytes)
    assert (row.slot_bytes, plain.rows[1].slot_bytes) == (slot, 2048 * 131_072)
    assert row.slots == (80 * GB - fixed) // (slot + sampler) == 320
    assert row.total_bytes == fixed + 320 * (slot + sampler)
    assert row.step_bytes == 7_504_924_672 * 2 + 320 * slot
    assert row.step_seconds == row.step_bytes / 10**12


def test_ranks_share_slots_in_8_bits() -> None:
    one, eight = (llama(PlanRequest(tensor_parallel=ranks, kv_format="int8")).rows[1].slot_bytes for ranks in (1, 8))
    assert one == 8 * eight


@pytest.mark.parametrize(
    ("kind", "kv_format", "skip"),
    [
        *[("Llama", "plain", 0), ("Llama", "int8", 0), ("Llama", "int4", 1), ("Llama", "zipcache", 1)],
        ("DeepseekV3", "int4", 1),
    ],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_planned_slot_has_the_bytes_that_an_engine_allocates(
    tmp_path: Path, kind: str, kv_format: PlaneFormat, skip: int, dtype: DType
) -> None:
    tiny = pytest.importorskip("tests.engine.tiny", reason="transformers, which makes the tiny model, is missing")
    from ringkv.engine.build import build
    from tests.engine.test_golden import LATENT

    tiny.save(tmp_path, kind, **(LATENT if kind == "DeepseekV3" else {}))
    limits = build(tiny.config(tmp_path, dtype=dtype, slot_format=SlotFormat(kv_format, skip=skip))).limits
    request = PlanRequest(kv_budget=limits.capacity, dtype=dtype, kv_format=kv_format, kv_format_skip=skip)
    assert report(find_shape(str(tmp_path)), request).rows[1].slot_bytes == limits.slot_bytes


def test_short_requests_need_no_more_entries_than_they_have_tokens() -> None:
    assert [row.entries for row in llama(PlanRequest(tokens=1000, kv_budget=2048)).rows] == [1000, 1000]


def test_prompts_shorter_than_the_context_stage_less() -> None:
    queries = 32 * 32 * 32 * 128 * 2
    assert llama(PlanRequest(prompt_tokens=1024, lanes=3)).staging_bytes == 3 * (1024 * 131_072 + queries)


def test_layers_with_a_sliding_window_stage_a_window_and_a_chunk_of_each_prompt() -> None:
    """Gemma 3 27B: 10 global layers and 52 with a window of 1,024; 16 heads of 128 elements take 8,192 bytes.

    The last 32 queries have 32 heads, so that they take as much as 32 tokens' keys and values.
    """
    staged = report(find_shape("gemma-3-27b"), PlanRequest(lanes=2, chunk=512)).staging_bytes
    assert staged == 2 * 8192 * (10 * 131_072 + 52 * (1024 + 512 + 64) + 62 * 32)


@pytest.mark.parametrize(
    ("planned", "param"),
    [
        (PlanRequest(tokens=200_000), "tokens"),
        (PlanRequest(tokens=0), "tokens"),
        (PlanRequest(tokens=1000, prompt_tokens=2000), "prompt_tokens"),
        (PlanRequest(kv_budget=0), "kv_budget"),
        (PlanRequest(lanes=0), "lanes"),
        (PlanRequest(tensor_parallel=0), "tensor_parallel"),
        (PlanRequest(tensor_parallel=12), "tensor_parallel"),
        (PlanRequest(memory=-1), "memory"),
        (PlanRequest(dtype="int3"), "dtype"),  # type: ignore[arg-type]
        (PlanRequest(kv_format="int3"), "kv_format"),  # type: ignore[arg-type]
    ],
)
def test_a_request_out_of_range_is_refused_by_field(planned: PlanRequest, param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        llama(planned)
    assert error.value.param == param


def test_a_report_is_plain_enough_for_json() -> None:
    plan = llama(PlanRequest(reserve=0, memory=80 * GB))
    assert json.loads(json.dumps(asdict(plan)))["rows"][1]["slots"] == 169


def test_a_directory_with_a_configuration_has_a_shape(tmp_path: Path) -> None:
    raw = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "eos_token_id": 2,
        "bos_token_id": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps(raw))
    shape, smollm2 = find_shape(str(tmp_path)), known("smollm2")
    assert (shape.parameters, shape.groups, shape.context) == (smollm2.parameters, smollm2.groups, smollm2.context)


def test_what_is_neither_directory_nor_name_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel):
        find_shape(str(tmp_path))


def test_a_gguf_file_is_planned_from_its_metadata_whatever_its_name(tmp_path: Path) -> None:
    tiny_gguf = pytest.importorskip("tests.weights.tiny_gguf")
    model = tiny_gguf.tiny_model("Qwen3", head_dim=32)
    shape = find_shape(str(tiny_gguf.write_tiny(tmp_path / "Qwen3-8B-Q4_K_M.gguf", model)))
    assert shape.parameters == sum(tensor.numel() for tensor in model.parameters())
    assert (shape.name, shape.context) == ("Qwen3-8B-Q4_K_M", 256)


def test_the_parts_of_a_gguf_are_planned_as_one_file(tmp_path: Path) -> None:
    tiny_gguf = pytest.importorskip("tests.weights.tiny_gguf")
    model = tiny_gguf.tiny_model("Llama")
    tiny_gguf.write_tiny(tmp_path / "tiny.gguf", model, per_part=8)
    shape = find_shape(str(tmp_path / "tiny-00001-of-00003.gguf"))
    assert (shape.name, shape.parameters) == ("tiny", sum(tensor.numel() for tensor in model.parameters()))
