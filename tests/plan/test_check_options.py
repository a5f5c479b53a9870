"""Whatever is refused without a model is refused with each model; the reverse is not so."""

import json
from pathlib import Path

import pytest

from ringkv.base.errors import InvalidRequest
from ringkv.plan.check_options import check_options
from ringkv.plan.head_profile import HeadProfile
from ringkv.plan.options import Options
from tests.plan.models import LLAMA_8B, SMOLLM2
from tests.plan.resolved import resolved

INVALID = (
    {"kv_policy": "snapstreem"},
    {"kv_policy": "full", "kv_compression": "4x"},
    {"kv_budget": 4},
    {"kv_sinks": 3000},
    {"kv_page": 16},
    {"kv_format": "plain", "kv_format_skip": 1},
    {"kv_format": "zipcache", "kv_policy": "arkvale"},
    {"kv_profile": "file"},
    {"attention_parallel": "tokens"},
    {"expert_parallel": True},
    {"weights": "int8", "dtype": "float32"},
    {"activations": "int8"},
    {"threads": 10**6},
    {"prefill_workspace": 0},
    {"tensor_parallel": 0},
    {"chunk": 0},
)
VALID = (
    {},
    {"kv_policy": "auto", "kv_page": 16},
    {"kv_policy": "auto", "kv_turns": "continue", "prefix_store": "1GB"},
    {"kv_policy": "arkvale", "kv_budget": 512},
    {"kv_compression": 1000, "prompt_tokens": 100_000},
    {"kv_compression": 1000, "prefill_workspace": 4096},
    {"kv_budget": 10**6},
    {"kv_heads": "global"},
    {"kv_format": "int4"},
    {"tensor_parallel": 2},
    {"prefill_workspace": 4096},
    {"speculate": 3, "slots": 100},
)


def id_of(options: dict[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in options.items()) or "defaults"


@pytest.mark.parametrize("options", INVALID, ids=id_of)
def test_what_is_refused_without_a_model_is_refused_with_one_in_the_same_words(options: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as without:
        check_options(Options(**options))  # type: ignore[arg-type]
    for model in (SMOLLM2, LLAMA_8B):
        with pytest.raises(InvalidRequest) as refused:
            resolved(model, **options)
        assert (str(without.value), without.value.param) == (str(refused.value), refused.value.param)


@pytest.mark.parametrize("options", VALID, ids=id_of)
def test_what_some_model_can_have_is_not_refused(options: dict[str, object]) -> None:
    assert resolved(LLAMA_8B, **options)
    check_options(Options(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"tensor_parallel": 7, "expert_parallel": True},
        {"tensor_parallel": 2, "attention_parallel": "slots"},
        {"prompt_tokens": 10**7},
        {"kv_heads": "profile"},
        {"kv_format": "int4", "kv_format_skip": 30},
    ],
    ids=id_of,
)
def test_what_depends_on_the_model_is_left_to_it(options: dict[str, object]) -> None:
    check_options(Options(**options))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        resolved(LLAMA_8B, **options)


def test_a_profile_of_heads_must_be_a_profile_of_some_model(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    options = Options(kv_heads="profile", kv_profile=str(path))
    with pytest.raises(InvalidRequest, match=f"kv_profile {path} does not exist"):
        check_options(options)
    path.write_text(json.dumps({"text": "a"}))
    with pytest.raises(InvalidRequest, match="is not a profile of heads"):
        check_options(options)
    HeadProfile("text", 1, (((1.0, 2.0),),)).write(path)
    check_options(options)
