from dataclasses import replace

import pytest

from ringkv.models.config import parse_config
from ringkv.plan import floor
from ringkv.plan.floor import LeastWork, Rates
from ringkv.plan.shapes import configurations
from tests.plan.models import SMOLLM2

# 30 layers, hidden size 576, 9 query and 3 key-value heads of 64, MLP size 1536; 49,152 tokens.
LAYERS = 30 * (576 * (576 + 192 + 192 + 576) + 3 * 576 * 1536)
HEAD = 49_152 * 576
ENTRY = 2 * 30 * 3 * 64 * 2


def test_the_matrices_of_smollm2_are_counted() -> None:
    assert (LAYERS, HEAD) == (106_168_320, 28_311_552)
    assert (floor.active_weights(SMOLLM2), floor.head_weights(SMOLLM2)) == (LAYERS, HEAD)


def test_a_step_reads_every_weight_once_and_what_the_slots_hold() -> None:
    assert floor.step(SMOLLM2, 8, 1792, ENTRY).bytes == 268_959_744 + 8 * 1792 * 23_040 == 599_261_184


def test_a_step_multiplies_each_row_with_every_weight_and_each_head_with_its_entries() -> None:
    found = floor.step(SMOLLM2, 8, 1792, ENTRY)
    assert found.operations == 8 * (2 * 134_479_872 + 4 * 30 * 9 * 64 * 1792)


def test_an_input_embedding_that_is_not_the_projection_is_not_read() -> None:
    untied = replace(SMOLLM2, tied_embeddings=False)
    assert floor.step(untied, 1, 100, ENTRY) == floor.step(SMOLLM2, 1, 100, ENTRY)


def test_fewer_bits_are_fewer_bytes() -> None:
    assert floor.weight_bytes(SMOLLM2, "int8") == LAYERS + HEAD
    assert floor.weight_bytes(SMOLLM2, "int4") == LAYERS * 5 / 8 + HEAD
    assert floor.weight_bytes(SMOLLM2, "float32") == 4 * (LAYERS + HEAD)


def test_a_prompt_of_three_tokens_has_six_pairs() -> None:
    found = floor.prefill(SMOLLM2, 3, ENTRY)
    assert found.operations == 2 * 3 * LAYERS + 2 * HEAD + 4 * 30 * 9 * 64 * 6
    assert found.bytes == 2 * (LAYERS + HEAD) + 3 * ENTRY


def test_attention_outweighs_the_linear_layers_of_smollm2_at_8k() -> None:
    linear = 2 * 8192 * LAYERS
    attention = floor.prefill(SMOLLM2, 8192, ENTRY).operations - linear - 2 * HEAD
    assert linear == pytest.approx(1.74e12, rel=0.01)
    assert attention == pytest.approx(2.32e12, rel=0.01)


def test_of_experts_a_step_reads_those_that_its_tokens_are_expected_to_choose() -> None:
    """Mixtral's shape: 2 of 8 experts; one token reads 2, two tokens 3.5 on average."""
    config = parse_config(dict(configurations()["mixtral-8x7b"]))
    expert, others = 3 * 4096 * 14336, 32 * (4096 * (2 * 4096 + 2 * 1024) + 8 * 4096) + 32000 * 4096
    assert floor.weight_bytes(config, rows=1) == 2 * (32 * 2 * expert + others)
    assert floor.weight_bytes(config, rows=2) == 2 * (32 * 3.5 * expert + others)
    assert floor.active_weights(config) + floor.head_weights(config) == 32 * 2 * expert + others


def test_heads_of_latent_attention_score_all_elements_and_sum_up_the_latents() -> None:
    config = parse_config({k: v for k, v in configurations()["deepseek-r1"].items() if k != "native"})
    assert floor.attention(config) == 61 * 128 * 2 * (576 + 512)


@pytest.mark.parametrize(("cost", "seconds"), [(LeastWork(100, 40), 10), (LeastWork(10, 40), 2)])
def test_the_slower_of_memory_and_arithmetic_sets_the_floor(cost: LeastWork, seconds: float) -> None:
    assert cost.seconds(Rates(bandwidth=10, matrix=20)) == seconds
