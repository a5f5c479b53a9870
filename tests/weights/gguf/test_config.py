"""config.json from GGUF metadata, against the configuration that transformers would save."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.models.base import Sliding
from ringkv.models.config import parse_config
from ringkv.weights.gguf.config import config_json
from ringkv.weights.gguf.file import GGUF
from tests.weights.tiny_gguf import tiny_model, write_header, write_tiny


def config_of(path: Path, metadata: dict[str, Any] | None = None, kind: str = "Llama") -> dict[str, Any]:
    return config_json(GGUF(write_tiny(path / "tiny.gguf", tiny_model(kind), metadata=metadata)))


def header_of(path: Path, kind: str, keys: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a GGUF with these keys and a vocabulary, but no layers."""
    return config_json(GGUF(write_header(path / "header.gguf", kind, keys)))


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3"])
def test_sizes_are_those_of_the_model(kind: str, tmp_path: Path) -> None:
    theirs = tiny_model(kind).config.to_dict()
    ours = config_of(tmp_path, kind=kind)
    same = set(ours) & set(theirs) - {"architectures", "bos_token_id", "eos_token_id"}
    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}
    assert len(same) > 10


def test_heads_given_layer_by_layer_are_read_if_they_are_equal(tmp_path: Path) -> None:
    assert config_of(tmp_path, {"llama.attention.head_count_kv": [2, 2]})["num_key_value_heads"] == 2


def test_head_dim_is_hidden_over_heads_by_default(tmp_path: Path) -> None:
    left_out = {"llama.attention.key_length": None, "llama.attention.value_length": None}
    assert config_of(tmp_path, left_out)["head_dim"] == 64 // 4


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"llama.attention.head_count_kv": [2, 4]}, "head_count_kv in each layer"),
        ({"llama.attention.value_length": 32}, "value_length 32"),
        ({"llama.rope.dimension_count": 8}, "dimension_count 8"),
        (
            {"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_gating_func": 2},
            "expert_gating_func 2",
        ),
        ({"llama.expert_weights_norm": False}, "expert_weights_norm False"),
        ({"split.count": 3}, "one of 3 parts"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(metadata: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        config_of(tmp_path, metadata)


def test_a_window_whose_layers_are_not_named_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="sliding_window 64"):
        config_of(tmp_path, {"qwen2.attention.sliding_window": 64}, kind="Qwen2")


@pytest.mark.parametrize(
    ("pattern", "local"),
    [(None, [0, 1]), (1, []), (2, [0]), (0, [0, 1]), ([False, True], [1]), ([False, True, True], [1])],
)
def test_a_pattern_names_the_layers_with_a_window(pattern: Any, local: list[int], tmp_path: Path) -> None:
    sliding = parse_config(config_of(tmp_path, WINDOW | {PATTERN: pattern})).sliding
    assert (sliding.layers if sliding else ()) == tuple(local)


def test_a_window_of_the_original_context_has_effect_in_the_longer_one_of_yarn(tmp_path: Path) -> None:
    window = {"llama.attention.sliding_window": 256, PATTERN: [True, False]}  # the tiny model's context
    yarn = {"type": "yarn", "factor": 4.0, "original_context_length": 256}
    assert parse_config(config_of(tmp_path, window)).sliding is None
    scaled = config_of(tmp_path, window | {f"llama.rope.scaling.{name}": value for name, value in yarn.items()})
    assert parse_config(scaled).sliding == Sliding(256, (0,))


@pytest.mark.parametrize(("layers", "divisor"), [(34, 256), (62, 168)])
def test_scores_of_gemma3_are_scaled_as_published_for_its_size(layers: int, divisor: int, tmp_path: Path) -> None:
    found = gemma3_of(tmp_path, {"block_count": layers})
    assert (found["query_pre_attn_scalar"], found["rope_local_base_freq"]) == (divisor, 10000.0)
    assert found["layer_types"].count("full_attention") == layers // 6


def test_capped_logits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"final_logit_softcapping 30\.0"):
        parse_config(gemma3_of(tmp_path, {"final_logit_softcapping": 30.0}))


def gemma3_of(path: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a GGUF with the sizes of Gemma 3 27B, except for `changes`."""
    keys = {
        "block_count": 62,
        "embedding_length": 5376,
        "feed_forward_length": 21504,
        "context_length": 131072,
        "attention.head_count": 32,
        "attention.head_count_kv": 16,
        "attention.key_length": 256,
        "attention.value_length": 256,
        "attention.sliding_window": 1024,
    }
    return header_of(path, "gemma3", keys | changes)


def test_experts_of_another_architecture_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"'qwen2' .*qwen2moe, qwen3moe"):
        config_of(tmp_path, {"qwen2.expert_count": 8}, kind="Qwen2")


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "x.gguf", "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((2, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match=r"'mamba'.*llama, qwen2, qwen3"):
        config_json(GGUF(tmp_path / "x.gguf"))


WINDOW = {"llama.attention.sliding_window": 16}
PATTERN = "llama.attention.sliding_window_pattern"


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"llama.attention.head_count": 0}, "attention.head_count 0, a positive number"),
        ({"llama.attention.head_count": ["a", "a"]}, r"attention.head_count \['a', 'a'\], a positive number"),
        ({"llama.block_count": "two"}, "block_count 'two', a positive number"),
        ({"llama.block_count": True}, "block_count True, a positive number"),
        ({"llama.rope.freq_base": "x"}, "freq_base 'x', a finite number"),
        ({"llama.rope.freq_base": float("nan")}, "freq_base nan, a finite number"),
        ({"llama.attention.layer_norm_rms_epsilon": [1.0]}, r"layer_norm_rms_epsilon \[1\.0\], a finite number"),
        ({"llama.rope.scaling.type": ["yarn"]}, r"rope\.scaling\.type \['yarn'\], a text"),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": "4"}, "scaling.factor '4', a finite"),
        ({"llama.attention.sliding_window": "x"}, "sliding_window 'x', a positive number"),
        (WINDOW | {PATTERN: "x"}, "sliding_window_pattern 'x', a period or true and false for its 2 layers"),
        (WINDOW | {PATTERN: [True]}, r"sliding_window_pattern \[True\], a period"),
        (WINDOW | {PATTERN: [2, 1]}, r"sliding_window_pattern \[2, 1\], a period"),
        ({"split.count": "x"}, "split.count 'x', a whole number"),
    ],
)
def test_a_value_of_a_wrong_type_is_named_with_its_file(metadata: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(BadWeights, match=rf"tiny\.gguf .*{named}"):
        config_of(tmp_path, metadata)


def test_layers_beyond_any_model_are_refused_before_they_are_listed(tmp_path: Path) -> None:
    with pytest.raises(BadWeights, match=r"num_hidden_layers 4294967295.* 2,048"):
        config_of(tmp_path, WINDOW | {"llama.block_count": 2**32 - 1})


def test_a_missing_size_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadWeights, match=r"no llama\.context_length"):
        config_of(tmp_path, {"llama.context_length": None})


@pytest.mark.parametrize(("stored", "written"), [(2**32 - 1, None), (96, None), (95, 95), (0, 0), (None, None)])
def test_a_token_id_outside_the_vocabulary_is_none(stored: int | None, written: int | None, tmp_path: Path) -> None:
    config = config_of(tmp_path, {f"tokenizer.ggml.{role}_token_id": stored for role in ("bos", "eos")})
    assert (config["bos_token_id"], config["eos_token_id"]) == (written, written)
    assert parse_config(config).bos_id == written


def test_linear_scaling_is_carried_over(tmp_path: Path) -> None:
    metadata = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.5}
    assert config_of(tmp_path, metadata)["rope_scaling"] == {"rope_type": "linear", "factor": 2.5}


def test_yarn_is_carried_over_and_its_attention_scale_multiplies(tmp_path: Path) -> None:
    metadata = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 64,
    }
    plain = config_of(tmp_path, metadata)["rope_scaling"]
    assert plain == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    scaled = config_of(tmp_path, {**metadata, "llama.rope.scaling.attn_factor": 0.5})["rope_scaling"]
    _, theirs = ROPE_INIT_FUNCTIONS["yarn"](LlamaConfig(rope_scaling=plain), "cpu")
    assert scaled["attention_factor"] == pytest.approx(0.5 * theirs)


def with_divisors(path: Path, divisors: torch.Tensor) -> dict[str, Any]:
    """Return the configuration of a tiny GGUF, head_dim 64, that holds these rotary divisors."""
    model = tiny_model("Llama", head_dim=64, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    return config_json(GGUF(write_tiny(path / "tiny.gguf", model, extra={"rope_freqs.weight": divisors.numpy()})))


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_recovered_from_its_divisors(factor: float, tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, rope_parameters={"rope_theta": 5e5, **scaling})
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 5e5 ** (-torch.arange(0, 64, 2) / 64)
    assert with_divisors(tmp_path, plain / frequencies)["rope_scaling"] == pytest.approx(scaling)


def test_divisors_of_ones_scale_nothing(tmp_path: Path) -> None:
    assert with_divisors(tmp_path, torch.ones(32))["rope_scaling"] is None


def test_divisors_of_another_rule_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="rope_freqs"):
        with_divisors(tmp_path, torch.linspace(1, 8, 32))
