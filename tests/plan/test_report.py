"""Against figures worked by hand."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from ringkv.base.errors import InvalidRequest, UnknownModel
from ringkv.plan.footprint import TEMPORARIES
from ringkv.plan.report import Question, Report, find_shape, report
from ringkv.plan.shapes import known

GB = 10**9


def llama(question: Question) -> Report:
    return report(known("llama-3.1-8b"), question)


def test_llama_8b_in_80_gigabytes_serves_2_full_contexts_and_169_compressed() -> None:
    plan = llama(Question(memory=80 * GB))
    token, weights = 131_072, 16_060_522_496
    staging = 131_072 * token
    left = 80 * GB - weights - staging
    assert (plan.token_bytes, plan.weight_bytes, plan.staging_bytes) == (token, weights, staging)
    full, small = plan.rows
    assert (full.cache, full.entries, full.slot_bytes, full.slots) == ("full", 131_072, 17_179_869_184, 2)
    assert (small.cache, small.entries, small.slot_bytes) == ("compressed", 2048, 268_435_456)
    sampler = 128_256 * (14 + TEMPORARIES) + 128_256 // 8
    assert plan.sampler_bytes == sampler
    assert small.slots == left // (2048 * token + sampler) == 169


def test_a_rank_of_eight_holds_an_eighth_of_llama_70b() -> None:
    one, eight = (report(known("llama-3.1-70b"), Question(tensor_parallel=ranks)) for ranks in (1, 8))
    assert (eight.token_bytes, eight.weight_bytes) == (one.token_bytes // 8, one.weight_bytes // 8)
    assert eight.rows[0].slot_bytes == one.rows[0].slot_bytes // 8


def test_deepseek_r1_repeats_its_latent_on_every_rank() -> None:
    plan = report(known("deepseek-r1"), Question(tensor_parallel=16, tokens=131_072))
    assert plan.token_bytes == 70_272
    assert plan.weight_bytes == 671_026_419_200 // 16
    assert plan.rows[0].slot_bytes == 70_272 * 131_072


def test_a_step_reads_the_weights_and_every_slots_entries_at_the_memorys_pace() -> None:
    plan = llama(Question(memory=80 * GB, bandwidth=2 * 10**12))
    full = plan.rows[0]
    read = 7_504_924_672 * 2 + 2 * 17_179_869_184
    assert full.step_bytes == read
    assert full.step_seconds == pytest.approx(read / 2e12)
    assert full.tokens_per_second == pytest.approx(2 / (read / 2e12))


def test_without_memory_nothing_is_said_of_slots() -> None:
    row = llama(Question()).rows[0]
    assert (row.slots, row.step_seconds, row.tokens_per_second) == (None, None, None)
    one_slot = 17_179_869_184 + 128_256 * (14 + TEMPORARIES) + 128_256 // 8
    assert row.total_bytes == 16_060_522_496 + 17_179_869_184 + one_slot  # weights, one lane, one slot


def test_memory_smaller_than_the_weights_fits_no_slot() -> None:
    plan = llama(Question(memory=10 * GB, bandwidth=10**12))
    assert [(row.slots, row.tokens_per_second) for row in plan.rows] == [(0, 0.0), (0, 0.0)]


def test_short_requests_need_no_more_entries_than_they_have_tokens() -> None:
    assert [row.entries for row in llama(Question(tokens=1000, budget=2048)).rows] == [1000, 1000]


def test_prompts_shorter_than_the_context_stage_less() -> None:
    assert llama(Question(prompt_tokens=1024, lanes=3)).staging_bytes == 3 * 1024 * 131_072


@pytest.mark.parametrize(
    ("question", "param"),
    [
        (Question(tokens=200_000), "tokens"),
        (Question(tokens=0), "tokens"),
        (Question(tokens=1000, prompt_tokens=2000), "prompt_tokens"),
        (Question(budget=0), "budget"),
        (Question(lanes=0), "lanes"),
        (Question(tensor_parallel=0), "tensor_parallel"),
        (Question(tensor_parallel=3), "tensor_parallel"),
        (Question(memory=-1), "memory"),
        (Question(dtype="int3"), "dtype"),
    ],
)
def test_a_question_without_an_answer_names_what_is_wrong(question: Question, param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        llama(question)
    assert error.value.param == param


def test_a_report_is_plain_enough_for_json() -> None:
    plan = llama(Question(memory=80 * GB))
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
    assert (shape.parameters, shape.cache, shape.context) == (smollm2.parameters, smollm2.cache, smollm2.context)


def test_what_is_neither_directory_nor_name_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel):
        find_shape(str(tmp_path))
