"""Metadata and shapes of mixtures of experts, right and wrong, without weights."""

from pathlib import Path
from typing import Any

import pytest

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.models.config import parse_config
from ringkv.models.experts import Experts
from ringkv.weights.gguf.config import config_json
from ringkv.weights.gguf.convert import shapes
from ringkv.weights.gguf.file import GGUF
from tests.weights.tiny_gguf import write_header

SIZES = {
    "block_count": 3,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "context_length": 256,
    "attention.head_count": 4,
    "attention.key_length": 48,
    "attention.value_length": 32,
    "attention.kv_lora_rank": 32,
    "rope.dimension_count": 16,
    "expert_count": 256,
    "expert_used_count": 8,
    "expert_shared_count": 1,
    "expert_feed_forward_length": 32,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
}
SOFTMAX = {"expert_gating_func": None, "expert_weights_norm": None}
GROUPED = {"expert_group_count": 16, "expert_group_used_count": 2}
STACKS = {"blk.0.ffn_gate_exps.weight": (4, 32, 64), "blk.0.ffn_up_exps.weight": (4, 32, 64)}
LATENTS = {"blk.0.attn_k_b.weight": (4, 32, 32), "blk.0.attn_v_b.weight": (4, 32, 32)}

Keys = dict[str, Any]


def written(path: Path, keys: Keys, kind: str = "deepseek2", tensors: dict[str, tuple[int, ...]] | None = None) -> GGUF:
    return GGUF(write_header(path / "tiny.gguf", kind, SIZES | keys, tensors))


@pytest.mark.parametrize(
    ("keys", "name", "groups"),
    [
        ({}, "DeepseekV3ForCausalLM", (8, 4)),
        (GROUPED, "DeepseekV3ForCausalLM", (16, 2)),
        ({"expert_count": 384}, "DeepseekV3ForCausalLM", (1, 1)),
        (SOFTMAX | {"expert_count": 160}, "DeepseekV2ForCausalLM", (8, 3)),
        (SOFTMAX | {"expert_count": 64, "expert_group_count": 0}, "DeepseekV2ForCausalLM", (1, 1)),
    ],
)
def test_groups_are_those_of_the_file_or_else_of_the_published_model_of_this_size(
    keys: Keys, name: str, groups: tuple[int, int], tmp_path: Path
) -> None:
    config = parse_config(config_json(written(tmp_path, keys)))
    experts = config.layers[config.kinds[-1]].feed_forward
    assert isinstance(experts, Experts)
    router = experts.router
    assert (config.architecture, (router.groups, router.kept_groups)) == (name, groups)


@pytest.mark.parametrize(
    ("kind", "keys", "named"),
    [
        ("deepseek2", {"expert_gating_func": 9}, "expert_gating_func 9"),
        ("deepseek2", SOFTMAX | {"expert_weights_norm": True}, "expert_weights_norm True"),
        ("glm4moe", {"expert_gating_func": 1, "attention.value_length": 48}, "expert_gating_func 1"),
        ("gpt-oss", {"expert_gating_func": 1, "attention.value_length": 48}, "expert_gating_func 1"),
        ("granitemoe", {}, "'granitemoe' with a mixture of experts is not implemented"),
    ],
)
def test_another_router_is_refused_by_name(kind: str, keys: Keys, named: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        config_json(written(tmp_path, {"rope.dimension_count": 48} | keys if kind == "gpt-oss" else keys, kind))


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"attention.kv_lora_rank": None}, "no deepseek2.attention.kv_lora_rank"),
        ({"attention.q_lora_rank": "x"}, "q_lora_rank 'x', a positive number"),
        ({"attention.key_length_mla": "x"}, "key_length_mla 'x', a positive number"),
        ({"rope.dimension_count": 48}, "heads of 48 elements of which 48 rotate"),
        ({"expert_used_count": None}, "no deepseek2.expert_used_count"),
        ({"expert_weights_scale": "x"}, "expert_weights_scale 'x', a finite number"),
        ({"expert_group_count": "x"}, "expert_group_count 'x', a whole number"),
        ({"leading_dense_block_count": [1]}, r"leading_dense_block_count \[1\], a whole number"),
        ({"nextn_predict_layers": 3}, "nextn_predict_layers 3 of 3 layers"),
        ({"nextn_predict_layers": "x"}, "nextn_predict_layers 'x', a whole number"),
    ],
)
def test_a_wrong_value_is_named_with_its_file(keys: Keys, named: str, tmp_path: Path) -> None:
    with pytest.raises(BadWeights, match=rf"tiny\.gguf has .*{named}.*fetch another copy"):
        config_json(written(tmp_path, keys))


def test_a_flag_that_is_not_a_boolean_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadWeights, match="norm_topk_prob 'x'"):
        parse_config(config_json(written(tmp_path, {"expert_weights_norm": "x"})))


@pytest.mark.parametrize(
    ("kind", "tensors", "named"),
    [
        ("gpt-oss", STACKS | {"blk.0.ffn_up_exps.weight": (4, 16, 64)}, r"\(4, 16, 64\), \(4, 32, 64\), 3 equal"),
        ("gpt-oss", dict.fromkeys(STACKS, (32, 64)), r"\(32, 64\), 3 equal sizes"),
        ("deepseek2", LATENTS | {"blk.0.attn_v_b.weight": (3, 32, 32)}, r"\(4, 32, 32\) and .* \(3, 32, 32\)"),
        ("deepseek2", LATENTS | {"blk.0.attn_k_b.weight": (128, 32)}, r"\(128, 32\) and .* \(4, 32, 32\)"),
    ],
)
def test_tensors_that_do_not_fit_each_other_are_named(
    kind: str, tensors: dict[str, tuple[int, ...]], named: str, tmp_path: Path
) -> None:
    with pytest.raises(BadWeights, match=rf"tiny\.gguf .*blk\.0\..*{named}"):
        shapes(written(tmp_path, {}, kind, tensors))


def test_latents_in_both_forms_are_read_from_the_older_one(tmp_path: Path) -> None:
    both = {**LATENTS, "blk.0.attn_kv_b.weight": (256, 32)}
    assert shapes(written(tmp_path, {}, tensors=both)).keys() == {
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.kv_b_proj.weight",
    }
