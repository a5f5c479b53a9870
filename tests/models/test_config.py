"""config.json files, written by transformers or spelled the older way, against transformers' own parsing."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.models.base import ModelConfig, Sliding
from ringkv.models.config import RopeConfig, load_config, parse_config
from ringkv.models.experts import Experts
from ringkv.models.families.registry import FAMILIES

SIZES = {
    "vocab_size": 300,
    "hidden_size": 96,
    "intermediate_size": 200,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
GLOBAL, LOCAL = "full_attention", "sliding_attention"
LLAMA = {"architectures": ["LlamaForCausalLM"], **SIZES}
HUNYUAN = {"architectures": ["HunYuanMoEV1ForCausalLM"], "num_experts": [4] * 3, "moe_topk": [2] * 3}


def saved(config: Any, architecture: str, directory: Path) -> Path:
    config.architectures = [architecture]
    config.save_pretrained(directory)
    return directory


@pytest.mark.parametrize(
    ("kind", "extra", "more"),
    [
        (
            "Llama",
            {"attention_bias": True, "mlp_bias": True},
            {"qkv_bias", "output_bias", "gate_up_bias", "down_bias"},
        ),
        ("Llama", {"tie_word_embeddings": True, "head_dim": 48}, set()),
        ("Mistral", {"sliding_window": None, "head_dim": 32}, set()),
        ("Qwen2", {}, {"qkv_bias"}),
        ("Qwen3", {"head_dim": 64}, {"q_norm", "k_norm"}),
        (
            "Qwen3",
            {"attention_bias": True, "tie_word_embeddings": True},
            {"q_norm", "k_norm", "qkv_bias", "output_bias"},
        ),
    ],
)
def test_a_saved_configuration_reads_as_transformers_reads_it(
    kind: str, extra: dict[str, Any], more: set[str], tmp_path: Path
) -> None:
    theirs = getattr(transformers, f"{kind}Config")(**SIZES, **extra)
    ours = load_config(saved(theirs, f"{kind}ForCausalLM", tmp_path))
    assert ours.num_layers == theirs.num_hidden_layers
    assert (ours.num_heads, ours.num_kv_heads) == (theirs.num_attention_heads, theirs.num_key_value_heads)
    assert ours.head_dim == getattr(theirs, "head_dim", 96 // 6)
    assert (ours.hidden_size, ours.intermediate_size, ours.vocab_size, ours.context) == (96, 200, 300, 4096)
    assert ours.norm.eps == theirs.rms_norm_eps
    assert ours.layers["global"].rope == RopeConfig(theirs.rope_parameters["rope_theta"])
    assert ours.tied_embeddings == theirs.tie_word_embeddings
    always = {"attention_norm", "feed_forward_norm", "qkv", "output", "gate_up", "down"}
    assert set(ours.layer_weights(0)) == always | more
    assert ("head" in ours.shared_weights()) == (not theirs.tie_word_embeddings)


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_what_a_short_configuration_leaves_out_is_what_transformers_assumes(kind: str) -> None:
    sizes = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
    sizes |= {"num_attention_heads": 32, "hidden_size": 512, "sliding_window": None}
    theirs = getattr(transformers, f"{kind}Config")(**sizes)
    ours = parse_config({"model_type": kind.lower(), **sizes})
    assert ours.architecture == f"{kind}ForCausalLM"
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 512 // 32)
    assert ours.norm.eps == theirs.rms_norm_eps
    assert ours.layers["global"].rope.theta == theirs.rope_parameters["rope_theta"]
    assert ours.tied_embeddings == theirs.tie_word_embeddings


SCALINGS = [
    ({"rope_type": "linear", "factor": 4.0}, RopeConfig(5e5, "linear", 4.0, 4096)),
    (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 1024,
        },
        RopeConfig(5e5, "llama3", 8.0, 1024, low_freq_factor=1.0, high_freq_factor=4.0),
    ),
    (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "beta_fast": 16},
        RopeConfig(5e5, "yarn", 4.0, 1024, beta_fast=16),
    ),
    (
        {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False},
        RopeConfig(5e5, "yarn", 4.0, 4096, mscale=1.0, mscale_all_dim=0.5, truncate=False),
    ),
]


@pytest.mark.parametrize(("scaling", "expected"), SCALINGS)
def test_both_spellings_of_the_rotary_embedding_give_the_same(scaling: dict[str, Any], expected: RopeConfig) -> None:
    older = dict(scaling)
    older["type"] = older.pop("rope_type")
    assert parse_config({**LLAMA, "rope_theta": 5e5, "rope_scaling": older}).layers["global"].rope == expected
    assert parse_config({**LLAMA, "rope_parameters": {"rope_theta": 5e5, **scaling}}).layers["global"].rope == expected


@pytest.mark.parametrize(("scaling", "expected"), SCALINGS)
def test_scaling_saved_by_transformers_reads_back(
    scaling: dict[str, Any], expected: RopeConfig, tmp_path: Path
) -> None:
    theirs = transformers.LlamaConfig(**SIZES, rope_parameters={"rope_theta": 5e5, **scaling})
    assert load_config(saved(theirs, "LlamaForCausalLM", tmp_path)).layers["global"].rope == expected


def test_yarn_without_a_factor_takes_the_ratio_of_the_contexts() -> None:
    scaling = {"type": "yarn", "original_max_position_embeddings": 512}
    assert parse_config({**LLAMA, "rope_scaling": scaling}).layers["global"].rope.factor == 8.0


def test_settings_that_published_models_switch_off_are_harmless() -> None:
    off = {"rope_interleaved": False, "use_mrope": False, "use_logn_attn": False, "use_dynamic_ntk": False}
    assert parse_config({**LLAMA, **off, "clip_qkv": None, "position_embedding_type": "rope"}) == parse_config(LLAMA)


def test_mistral_has_a_sliding_window_unless_it_is_null() -> None:
    long = {**LLAMA, "architectures": ["MistralForCausalLM"], "max_position_embeddings": 32768}
    assert transformers.MistralConfig(**{name: long[name] for name in SIZES}).sliding_window == 4096
    assert parse_config(long).sliding == Sliding(4096, (0, 1, 2))
    assert parse_config({**long, "sliding_window": None}).sliding is None


@pytest.mark.parametrize(
    "window",
    [
        {"use_sliding_window": False, "sliding_window": 512, "max_window_layers": 1},
        {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 1},
        {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 3},
    ],
    ids=["switched off", "as long as the context", "beyond the last layer"],
)
def test_a_window_that_no_layer_uses_is_harmless(window: dict[str, Any]) -> None:
    assert parse_config({**LLAMA, "architectures": ["Qwen2ForCausalLM"], **window}).sliding is None


@pytest.mark.parametrize("kind", ["Qwen2", "Qwen3"])
@pytest.mark.parametrize(
    "window",
    [
        {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 2},
        {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": 512, "layer_types": [LOCAL, GLOBAL, LOCAL]},
        {"use_sliding_window": True, "max_window_layers": 1, "max_position_embeddings": 8192},
    ],
)
def test_the_layers_with_a_window_are_those_of_transformers(kind: str, window: dict[str, Any]) -> None:
    theirs = getattr(transformers, f"{kind}Config")(**{**SIZES, **window})
    ours = parse_config({**LLAMA, "architectures": [f"{kind}ForCausalLM"], **window}).sliding
    assert ours is not None
    assert ours.window == theirs.sliding_window
    assert ours.layers == tuple(i for i, type in enumerate(theirs.layer_types) if type == LOCAL)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize("kind", ["Mistral", "Qwen2", "Qwen3"])
def test_a_window_of_the_original_context_has_effect_in_the_longer_one_of_yarn(kind: str) -> None:
    window = {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 1}
    raw = LLAMA | window | {"architectures": [f"{kind}ForCausalLM"]}
    ours = parse_config(raw | {"rope_scaling": YARN})
    assert (ours.context, ours.sliding and ours.sliding.window) == (4 * 4096, 4096)
    assert parse_config(raw).sliding is None


def test_a_window_of_the_original_context_is_refused_with_yarn_where_no_window_is_implemented() -> None:
    assert parse_config(LLAMA | {"sliding_window": 4096}).sliding is None
    with pytest.raises(UnsupportedModel, match="sliding_window 4096"):
        parse_config(LLAMA | {"sliding_window": 4096, "rope_scaling": YARN})


def test_a_context_of_yarn_has_the_bound_of_any_context() -> None:
    with pytest.raises(BadWeights, match=r"max_position_embeddings 4096000000000000, ringkv reads up to 1,073,741,824"):
        parse_config(LLAMA | {"rope_scaling": YARN | {"factor": 1e12}})


def test_dual_chunks_are_refused_in_the_longer_context_of_yarn() -> None:
    chunks = {"dual_chunk_attention_config": {"original_max_position_embeddings": 4096}}
    qwen2 = LLAMA | chunks | {"architectures": ["Qwen2ForCausalLM"]}
    assert parse_config(qwen2).context == 4096
    with pytest.raises(UnsupportedModel, match="dual_chunk_attention_config over a context of 16,384"):
        parse_config(qwen2 | {"rope_scaling": YARN})


def test_layer_types_that_do_not_match_the_layers_are_named() -> None:
    mistral = {**LLAMA, "architectures": ["MistralForCausalLM"], "sliding_window": 16}
    with pytest.raises(BadWeights, match="2 layer_types for 3 layers"):
        parse_config({**mistral, "layer_types": [LOCAL, GLOBAL]})
    with pytest.raises(UnsupportedModel, match="layer_types chunked_attention"):
        parse_config({**mistral, "layer_types": ["chunked_attention"] * 3})


OLD_GEMMA3 = {  # the spelling of gemma-3-1b-it's config.json, with small sizes
    "architectures": ["Gemma3ForCausalLM"],
    **SIZES,
    "num_hidden_layers": 7,
    "head_dim": 48,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 24,
    "rope_local_base_freq": 20000,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 3,
}


def test_gemma3_reads_the_same_in_both_spellings(tmp_path: Path) -> None:
    older = parse_config(OLD_GEMMA3)
    theirs = transformers.Gemma3TextConfig(**{name: value for name, value in OLD_GEMMA3.items() if name in SIZES})
    theirs.update({"head_dim": 48, "query_pre_attn_scalar": 24, "sliding_window": 512})
    theirs.layer_types = [LOCAL, LOCAL, GLOBAL, LOCAL, LOCAL, GLOBAL, LOCAL]
    theirs.num_hidden_layers = 7
    theirs.rope_parameters = {
        GLOBAL: {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        LOCAL: {"rope_type": "default", "rope_theta": 2e4},
    }
    assert load_config(saved(theirs, "Gemma3ForCausalLM", tmp_path)) == older
    assert older.sliding == Sliding(512, (0, 1, 3, 4, 6))
    assert [group.window for group in older.groups] == [None, 512]
    global_layer, local_layer = (older.layers[kind] for kind in ("global", "local"))
    assert (global_layer.rope, local_layer.rope) == (RopeConfig(1e6, "linear", 8.0, 4096), RopeConfig(2e4))
    assert global_layer.attention.scale == 24**-0.5


def test_a_gemma3_that_takes_images_is_read_as_its_text_model() -> None:
    """gemma-3-4b-it's config.json has its end tokens outside text_config and leaves most sizes out."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106], "model_type": "gemma3"}
    ours = parse_config({**outer, "text_config": text})
    alone = parse_config({**text, "eos_token_id": [1, 106]})
    named = {"architecture": ours.architecture, "prefix": ours.prefix, "unused": ours.unused}
    assert replace(alone, **named) == ours  # type: ignore[arg-type]
    assert ours.shared_weights()["embed"].parts[0].name == "language_model.model.embed_tokens.weight"
    with pytest.raises(BadWeights, match="text_config None"):
        parse_config(outer)


def test_what_a_short_gemma3_configuration_leaves_out_is_what_transformers_assumes() -> None:
    short = {"hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26}
    theirs, ours = transformers.Gemma3TextConfig(**short), parse_config({"model_type": "gemma3_text", **short})
    assert (ours.vocab_size, ours.context, ours.head_dim) == (262208, theirs.max_position_embeddings, theirs.head_dim)
    assert (ours.num_heads, ours.num_kv_heads) == (theirs.num_attention_heads, theirs.num_key_value_heads)
    assert ours.tied_embeddings == theirs.tie_word_embeddings
    assert ours.sliding is not None
    assert ours.sliding.window == theirs.sliding_window
    assert ours.sliding.layers == tuple(i for i, type in enumerate(theirs.layer_types) if type == LOCAL)
    assert ours.layers["global"].rope.theta == theirs.rope_parameters[GLOBAL]["rope_theta"]
    assert ours.layers["local"].rope.theta == theirs.rope_parameters[LOCAL]["rope_theta"]
    assert ours.layers["local"].attention.scale == theirs.query_pre_attn_scalar**-0.5
    assert (ours.eos_ids, ours.bos_id) == ((theirs.eos_token_id,), theirs.bos_token_id)


def test_hunyuan_shares_caches_only_if_use_cla_says_so() -> None:
    """Hunyuan-A13B's config.json has use_cla false beside cla_share_factor 2."""
    assert not parse_config({**LLAMA, **HUNYUAN, "cla_share_factor": 2}).shares_caches
    assert not parse_config({**LLAMA, **HUNYUAN, "use_cla": False, "cla_share_factor": 2}).shares_caches
    assert parse_config({**LLAMA, **HUNYUAN, "use_cla": True, "cla_share_factor": 2}).kv_source == (0, 0, 2)


def test_the_first_hunyuan_models_have_one_architecture_and_their_own_names() -> None:
    first = {**LLAMA, "architectures": ["HunYuanForCausalLM"], "attention_head_dim": 24, "use_cla": True}
    dense = {**first, "architectures": ["HunYuanDenseV1ForCausalLM"], "head_dim": 24}
    assert same(parse_config({**first, "num_experts": 1, "moe_topk": [1] * 3}), parse_config(dense))
    mixed = {**HUNYUAN, "head_dim": 24, "use_cla": True}
    assert same(parse_config({**first, "num_experts": 4, "moe_topk": 2}), parse_config({**LLAMA, **mixed}))
    alone = parse_config({**first, "num_experts": 4, "moe_topk": 1})
    experts = alone.layers["global"].feed_forward
    assert isinstance(experts, Experts)
    assert not experts.router.normalised


def same(one: ModelConfig, other: ModelConfig) -> bool:
    return one == replace(other, architecture=one.architecture)


SHORT_GEMMA4 = {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 13}


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"num_kv_shared_layers": 6, "use_double_wide_mlp": True, "final_logit_softcapping": 30.0},
        {"attention_k_eq_v": True, "num_global_key_value_heads": 2, "global_head_dim": 128},
        {"num_global_key_value_heads": 2},
        {"hidden_size_per_layer_input": 0, "layer_types": [LOCAL, GLOBAL] * 6 + [LOCAL]},
    ],
)
def test_gemma4_reads_the_same_as_published_and_as_transformers_writes_it(extra: Any, tmp_path: Path) -> None:
    theirs = transformers.Gemma4TextConfig(**SHORT_GEMMA4, **extra)
    ours = parse_config({"model_type": "gemma4_text", **SHORT_GEMMA4, **extra})
    assert load_config(saved(theirs, "Gemma4ForCausalLM", tmp_path)) == ours
    assert [kind.split("-")[0] for kind in ours.kinds] == [
        type.split("_")[0].replace("full", "global").replace("sliding", "local") for type in theirs.layer_types
    ]
    for at, kind in enumerate(ours.kinds):
        layer, own = ours.layers[kind], theirs.per_layer_config[at]
        assert (layer.attention.head_dim, layer.attention.kv_heads) == (own.head_dim, own.num_key_value_heads)
        assert layer.attention.shared == (theirs.kv_sharing_modes[at] == "reuse")
    assert (ours.vocab_size, ours.context, ours.eos_ids, ours.bos_id) == (262144, 131072, (1,), 2)
    assert ours.layers["global"].rope == RopeConfig(1e6, "proportional", 1.0, 131072, fraction=0.25)


SHORT_GEMMA3N = {"hidden_size": 2048, "num_hidden_layers": 20, "num_kv_shared_layers": 5}


def test_what_a_short_gemma3n_configuration_leaves_out_is_what_transformers_assumes(tmp_path: Path) -> None:
    theirs = transformers.Gemma3nTextConfig(**SHORT_GEMMA3N)
    ours = parse_config({"model_type": "gemma3n_text", **SHORT_GEMMA3N})
    assert load_config(saved(theirs, "Gemma3nForCausalLM", tmp_path)) == ours
    assert ours.logit_cap == theirs.final_logit_softcapping
    for at, kind in enumerate(ours.kinds):
        layer = ours.layers[kind]
        assert (layer.window == 512) == (theirs.layer_types[at] == LOCAL)
        assert layer.attention.shared == (theirs.kv_sharing_modes[at] == "reuse")
        assert getattr(layer.feed_forward, "sparsity", 0.0) == theirs.activation_sparsity_pattern[at]
        assert (layer.rank, layer.streams, layer.inputs) == (theirs.laurel_rank, theirs.altup_num_inputs, 256)
        assert layer.rope.theta == theirs.rope_parameters[theirs.layer_types[at]]["rope_theta"]


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (2, None, (2,)),
        ([5, 3], [3, 9, 5], (5, 3, 9)),
        (None, 7, (7,)),
        (4, [4], (4,)),
        (None, None, ()),
    ],
)
def test_end_tokens_are_the_union_of_both_files_in_order(
    config: Any, generation: Any, expected: tuple[int, ...], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "eos_token_id": config, "bos_token_id": 1}))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation, "bos_token_id": 8}))
    ours = load_config(tmp_path)
    assert (ours.eos_ids, ours.bos_id) == (expected, 1)


def test_counts_may_be_written_with_a_decimal_point() -> None:
    floats = {name: float(value) for name, value in SIZES.items()}
    scaling = {"type": "yarn", "original_max_position_embeddings": 512}
    decimal = parse_config({**LLAMA, **floats, "rope_scaling": {**scaling, "original_max_position_embeddings": 512.0}})
    assert decimal == parse_config({**LLAMA, "rope_scaling": scaling})
    assert all(type(getattr(decimal, name)) is int for name in ("num_layers", "head_dim", "context", "vocab_size"))


PUBLISHED_GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    **SIZES,
    "max_position_embeddings": 131072,
    "num_local_experts": 8,
    "num_experts_per_tok": 4,
    "head_dim": 16,
    "sliding_window": 128,
    "layer_types": [LOCAL, GLOBAL, LOCAL],
    "rope_theta": 150000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
    "rms_norm_eps": 1e-5,
    "swiglu_limit": 7.0,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
}


def test_gpt_oss_reads_the_same_as_published_and_as_transformers_saves_it(tmp_path: Path) -> None:
    published = parse_config(PUBLISHED_GPT_OSS)
    theirs = transformers.GptOssConfig(**SIZES | {"max_position_embeddings": 131072}, num_local_experts=8, head_dim=16)
    assert published == load_config(saved(theirs, "GptOssForCausalLM", tmp_path))
    assert published.sliding == Sliding(128, (0, 2))
    short = {name: value for name, value in PUBLISHED_GPT_OSS.items() if not name.startswith("rope")}
    assert parse_config(short) == published


@pytest.mark.parametrize("spelling", [{"rope_theta": 0}, {"rope_parameters": {"rope_theta": 0.0}}])
def test_a_rope_theta_of_0_is_the_default(spelling: dict[str, Any]) -> None:
    assert parse_config({**LLAMA, **spelling}) == parse_config(LLAMA)


def test_a_model_type_alone_names_one_architecture() -> None:
    """transformers knows the others: the text models of gemma3, gemma3n and gemma4, and Hunyuan's first models."""
    types = {family.model_type: name for name, family in FAMILIES.items()}
    assert len(types) == len(FAMILIES)
    known = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    theirs = {type: name for type, name in known.items() if type in types}
    assert {type: types[type] for type in theirs} == theirs


@pytest.mark.parametrize(
    ("positions", "rope", "context"),
    [
        (1536, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        (4096, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        (1536, {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        (8192, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 8192),
        (1536, {"rope_type": "yarn", "factor": 4.0}, 1536),
        (1536, {"rope_type": "linear", "factor": 4.0}, 1536),
        (1536, {"rope_type": "default"}, 1536),
    ],
)
def test_yarn_has_the_context_of_its_factor(positions: int, rope: dict[str, Any], context: int) -> None:
    raw = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "head_dim": 16, "max_position_embeddings": positions}
    for name in ("rope_parameters", "rope_scaling"):
        assert parse_config({**raw, name: rope}).context == context
