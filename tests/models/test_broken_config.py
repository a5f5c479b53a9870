"""config.json files that are broken or made to harm: each is refused in one sentence that names the field."""

from pathlib import Path
from typing import Any

import pytest

from ringkv.base.errors import BadWeights, UnknownModel, UnsupportedModel
from ringkv.models.config import load_config, parse_config
from tests.models.test_config import LLAMA


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ({"hidden_size": None}, "hidden_size None"),
        ({"num_hidden_layers": -1}, "num_hidden_layers -1"),
        ({"vocab_size": "many"}, "vocab_size 'many'"),
        ({"num_key_value_heads": 4}, "6 attention heads over 4"),
        ({"head_dim": 15}, "head_dim 15"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers 1000000000, ringkv reads up to 2,048"),
        ({"hidden_size": 96.5}, "hidden_size 96.5, a positive number"),
        ({"max_position_embeddings": float("inf")}, "max_position_embeddings inf, a positive number"),
        ({"max_position_embeddings": 1e300}, "max_position_embeddings .*, ringkv reads up to"),
        ({"vocab_size": 10**30}, "vocab_size 10{27,}"),
        ({"hidden_size": 10**4000}, r"hidden_size .*\.\.\., ringkv reads up to 1,048,576"),
        ({"max_position_embeddings": True}, "max_position_embeddings True"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps nan"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps inf"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps 10"),
        ({"rope_theta": 1}, "rope_theta 1,"),
        ({"rope_theta": "NaN"}, "rope_theta 'NaN'"),
        ({"rope_scaling": {"type": "linear", "factor": float("inf")}}, "factor inf"),
        ({"rope_scaling": {"type": "linear", "factor": 1e-300}}, "factor 1e-300"),
        ({"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4.0}}, "low_freq_factor 4 .*factor 4;"),
        ({"rope_scaling": {"type": "llama3", "factor": 8, "high_freq_factor": []}}, r"high_freq_factor \[\]"),
        ({"rope_scaling": {"type": "yarn", "factor": 8, "beta_fast": 0}}, "beta_fast 0,"),
        ({"rope_scaling": {"type": "yarn", "factor": 8, "mscale": -1}}, "mscale -1,"),
        ({"rope_scaling": {"type": "yarn", "factor": 8, "truncate": "no"}}, "truncate 'no'"),
        ({"rope_scaling": [1]}, r"rope_scaling \[1\], an object is needed"),
        ({"rope_parameters": "x"}, "rope_parameters 'x', an object is needed"),
        ({"architectures": "LlamaForCausalLM"}, "architectures 'Llama.*', a list of strings is needed"),
        ({"architectures": [{}]}, r"architectures \[\{\}\], a list of strings is needed"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings 'false', true or false is needed"),
        ({"eos_token_id": "2"}, "eos_token_id '2', a token id"),
        ({"eos_token_id": [2, [3]]}, "eos_token_id .*, a token id"),
        ({"bos_token_id": 2**31}, "bos_token_id 2147483648, a token id"),
        ({"dual_chunk_attention_config": 3}, "dual_chunk_attention_config 3, an object is needed"),
    ],
)
def test_an_invalid_number_is_named(broken: dict[str, Any], named: str) -> None:
    with pytest.raises(BadWeights, match=named):
        parse_config({**LLAMA, **broken})


@pytest.mark.parametrize(
    ("family", "broken", "named"),
    [
        ("MistralForCausalLM", {"layer_types": 3, "sliding_window": 16}, "layer_types 3, a list of strings is needed"),
        ("MistralForCausalLM", {"layer_types": [[]], "sliding_window": 16}, r"layer_types \[\[\]\], a list of strings"),
        ("LlamaForCausalLM", {"layer_types": [[]]}, r"layer_types \[\[\]\] is not implemented"),
        ("LlamaForCausalLM", {"no_rope_layers": 7}, "no_rope_layers 7 is not implemented"),
        ("LlamaForCausalLM", {"position_embedding_type": "x" * 10_000}, "position_embedding_type 'x{50,60}"),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": -3}, "max_window_layers -3"),
        ("Gemma3ForCausalLM", {"hidden_act": None, "query_pre_attn_scalar": "256"}, "query_pre_attn_scalar '256'"),
        ("Gemma3ForCausalLM", {"hidden_act": None, "rope_local_base_freq": []}, r"rope_local_base_freq \[\]"),
        (
            "Gemma3ForCausalLM",
            {"hidden_act": None, "rope_parameters": {"full_attention": {}, "sliding_attention": 5}},
            "sliding_attention 5, an object is needed",
        ),
    ],
)
def test_a_field_of_a_wrong_type_is_named_in_one_short_line(family: str, broken: dict[str, Any], named: str) -> None:
    with pytest.raises((BadWeights, UnsupportedModel), match=named) as refused:
        parse_config({**LLAMA, "architectures": [family], **broken})
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 200


def test_a_deeply_nested_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"rope_scaling": ' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(BadWeights, match=r"config\.json .* 64"):
        load_config(tmp_path)


def test_a_directory_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match=r"no config\.json"):
        load_config(tmp_path)


@pytest.mark.parametrize("text", ['{"hidden_size": ', "[1, 2]", "\x00\xff"])
def test_a_broken_configuration_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(BadWeights, match=r"config\.json"):
        load_config(tmp_path)
