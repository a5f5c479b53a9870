"""Metadata of Gemma 3n and Gemma 4 as published and wrong, without weights."""

import math
from pathlib import Path
from typing import Any

import pytest

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.models.config import parse_config
from ringkv.models.layer import GaussianTopK
from ringkv.weights.gguf.config import config_json
from ringkv.weights.gguf.file import GGUF
from tests.weights.tiny_gguf import write_header

Keys = dict[str, Any]

SIZES = {
    "block_count": 35,
    "embedding_length": 64,
    "context_length": 256,
    "attention.head_count": 8,
    "attention.head_count_kv": 2,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.sliding_window": 512,
    "embedding_length_per_layer_input": 16,
}
E4B = {
    "feed_forward_length": [128] * 35,
    "attention.shared_kv_layers": 15.0,
    "attention.sliding_window_pattern": [True, True, True, True, False] * 7,
    "altup.active_idx": 0,
    "activation_sparsity_scale": [1.6448533535003662] * 10 + [-math.inf] * 25,
}
E2B = {
    "feed_forward_length": [128] * 15 + [256] * 20,
    "attention.shared_kv_layers": 20,
    "attention.sliding_window_pattern": [True, True, True, True, False] * 7,
    "attention.key_length_swa": 16,
    "attention.value_length_swa": 16,
}
ROPE = {"rope_freqs.weight": (16,)}
TENSORS = {
    "gemma3n": {
        "altup_proj.weight": (3, 4, 4),
        "blk.0.laurel_l.weight": (8, 4),
        "per_layer_token_embd.weight": (96, 4),
    },
    "gemma4": {"per_layer_token_embd.weight": (96, 4)},
}


def config_of(path: Path, kind: str, keys: Keys, tensors: dict[str, tuple[int, ...]] | None = None) -> Keys:
    published = {"gemma3n": E4B, "gemma4": E2B}[kind]
    return config_json(
        GGUF(write_header(path / "tiny.gguf", kind, {**SIZES, **published, **keys}, TENSORS[kind] | (tensors or {})))
    )


def test_gemma3n_has_the_sparsities_whose_quantiles_are_in_the_file(tmp_path: Path) -> None:
    raw = config_of(tmp_path, "gemma3n", {})
    assert raw["activation_sparsity_pattern"] == [0.95] * 10 + [0.0] * 25
    config = parse_config(raw)
    assert [isinstance(config.layers[kind].feed_forward, GaussianTopK) for kind in config.kinds] == [True] * 10 + [
        False
    ] * 25
    assert config.streams is not None
    assert (config.logit_cap, config.streams.count) == (30.0, 4)
    assert config.kv_source[20:] == (18, 18, 18, 18, 19) * 3


@pytest.mark.parametrize(
    ("kind", "keys", "named"),
    [
        ("gemma3n", {"attention.shared_kv_layers": 15.5}, r"shared_kv_layers 15\.5, a whole number"),
        ("gemma3n", {"attention.shared_kv_layers": 35.0}, "shared_kv_layers 35 of 35 layers"),
        ("gemma3n", {"activation_sparsity_scale": [math.nan]}, "activation_sparsity_scale .nan., a list of numbers"),
        ("gemma3n", {"attention.shared_kv_layers": -1.0}, "shared_kv_layers -1 of 35 layers"),
        ("gemma3n", {"attention.shared_kv_layers": None}, "no gemma3n.attention.shared_kv_layers"),
        ("gemma3n", {"altup.active_idx": None}, "no gemma3n.altup.active_idx"),
        ("gemma4", {"attention.key_length_swa": None}, "no gemma4.attention.key_length_swa"),
        ("gemma4", {}, "no tensor rope_freqs.weight"),
        ("gemma4", {"attention.shared_kv_layers": 2**32 - 1}, "shared_kv_layers 4294967295 of 35 layers"),
    ],
)
def test_a_wrong_value_is_named_with_its_file(kind: str, keys: Keys, named: str, tmp_path: Path) -> None:
    with pytest.raises(BadWeights, match=rf"tiny\.gguf has .*{named}.*fetch another copy"):
        config_of(tmp_path, kind, keys)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({}, "rope_freqs.weight that does more than stop pairs; fetch this model as safetensors"),
        ({"feed_forward_length": [128] * 34 + [256]}, "feed_forward_length .*twice that in layers that share"),
        ({"attention.head_count_kv": [2] * 34 + [1]}, "head_count_kv .*one number for layers with a sliding window"),
        ({"attention.value_length_swa": 32}, "value_length_swa 32 and head_dim 16"),
        ({"rope.dimension_count_swa": 8}, "dimension_count_swa 8 and head_dim 16"),
    ],
)
def test_what_is_not_implemented_of_gemma4_is_refused_by_name(keys: Keys, named: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        config_of(tmp_path, "gemma4", keys, ROPE)
