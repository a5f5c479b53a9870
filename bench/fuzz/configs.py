"""config.json and generation_config.json: wrong types, extreme numbers, deep nesting, truncation and flipped bytes."""

import json
from random import Random
from typing import Any

from bench.fuzz.mutate import mutated_json, nested
from bench.fuzz.target import Target
from bench.fuzz.tiny_models import CONFIG, GENERATION, check_ordinary, config_files, in_folder, serve, weight_files

NUMBERS: Any = (
    0,
    1,
    2,
    -1,
    0.5,
    1e-45,
    1e39,
    float("inf"),
    float("nan"),
    2**31,
    2**63,
    10**18,
    10**400,
    "8",
    True,
    None,
)
KINDS: Any = ("default", "linear", "llama3", "yarn", "longrope", "", 3, None, [], "x" * 1000)
FACTORS = (
    "factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow",
    "attention_factor", "mscale", "mscale_all_dim", "truncate", "rope_theta", "partial_rotary_factor",
)  # fmt: skip
FAMILIES = (
    "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration", "NoModel", "", "a\nb", 3, None,
)  # fmt: skip
OTHERS: Any = {
    "layer_types": ["full_attention", "sliding_attention"],
    "sliding_window": 16,
    "use_sliding_window": True,
    "max_window_layers": 1,
    "sliding_window_pattern": 2,
    "query_pre_attn_scalar": 8,
    "rope_local_base_freq": 1e4,
    "attention_bias": False,
    "mlp_bias": False,
    "text_config": dict(CONFIG),
    "dual_chunk_attention_config": {"original_max_position_embeddings": 64},
    "no_rope_layers": [1, 1],
    "quantization_config": {},
    "num_experts": 0,
    "rope_parameters": {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_theta": 1e4}},
}


def _make(random: Random) -> dict[str, bytes]:
    name = random.choice(("config.json", "config.json", "config.json", "generation_config.json"))
    value = dict(CONFIG if name == "config.json" else GENERATION)
    for _ in range(random.randint(1, 3)):
        value = random.choice((_number, _rope, _family, _other, _mutated))(random, value)
    return {**config_files(), **weight_files(), name: _damaged(random, json.dumps(value).encode())}


def _number(random: Random, value: dict[str, Any]) -> dict[str, Any]:
    return {**value, random.choice(list(value) or ["hidden_size"]): random.choice(NUMBERS)}


def _rope(random: Random, value: dict[str, Any]) -> dict[str, Any]:
    given = {"rope_type": random.choice(KINDS[:4] + KINDS), "factor": 4.0}
    given |= {key: random.choice(NUMBERS) for key in random.sample(FACTORS, random.randint(0, 4))}
    return {**value, random.choice(("rope_scaling", "rope_parameters")): given}


def _family(random: Random, value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "architectures": random.choice(([random.choice(FAMILIES)], random.choice(FAMILIES)))}


def _other(random: Random, value: dict[str, Any]) -> dict[str, Any]:
    key = random.choice(list(OTHERS))
    return {**value, key: random.choice((OTHERS[key], mutated_json(random, OTHERS[key]), random.choice(NUMBERS)))}


def _mutated(random: Random, value: dict[str, Any]) -> dict[str, Any]:
    found = mutated_json(random, value)
    return found if isinstance(found, dict) else {**value, random.choice(list(CONFIG)): nested(random, found)}


def _damaged(random: Random, data: bytes) -> bytes:
    """Return the bytes, in one of five cases cut, with a flipped byte, or nested deeply."""
    if random.random() < 0.8:
        return data
    at, depth = random.randrange(len(data)), random.choice((100, 2000, 100_000))
    return random.choice(
        (data[:at], data[:at] + random.randbytes(1) + data[at + 1 :], b'{"a": ' + b"[" * depth + b"]" * depth + b"}")
    )


def _run(files: dict[str, bytes]) -> None:
    in_folder(files, serve)


CONFIGS = Target("config.json of a model directory", _make, _run, check_ordinary)
