"""Drafts: where they come from, what is refused by name, and the draft model's engine in the plan."""

import json
from pathlib import Path
from typing import Any

import pytest

from ringkv.base.cannot import refuse
from ringkv.base.errors import InvalidRequest
from ringkv.base.wanted import Start, of_engine
from ringkv.models.config import load_config
from ringkv.plan.check_options import check_options
from ringkv.plan.complete import complete
from ringkv.plan.engine_footprint import engine_footprint
from ringkv.plan.options import Options
from ringkv.plan.speculation import Speculation
from tests.engine import tiny


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    other = {"num_hidden_layers": 1, "vocab_size": 64}
    return tiny.save_all(
        tmp_path_factory, {"target": ("Llama", {}), "drafter": ("Llama", {}), "other": ("Llama", other)}
    )


def with_drafter(folder: Path, **more: Any) -> Options:
    return Options(speculative_config={"model": str(folder), **more}, prompt_tokens=256, chunk=64, kv_budget=128)


def test_speculate_is_prompt_lookup() -> None:
    assert Speculation.of(Options(speculate=3)) == Speculation.of(
        Options(speculative_config='{"method": "ngram", "num_speculative_tokens": 3}')
    )
    assert Speculation.of(Options()).tokens == 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("{", "it is not JSON"),
        ("3", "give an object"),
        ({"method": "eagle3"}, "method eagle3 is not implemented"),
        ({"method": "suffix"}, "choose draft_model or ngram"),
        ({"method": "ngrams"}, "must be draft_model or ngram"),
        ({"method": "draft_model"}, "needs a model"),
        ({"model": "m", "num_speculative_tokens": 8}, "it must be 1 to 7"),
        ({"model": "m", "draft_window": 10}, "at least 64"),
        ({"model": "m", "draft_weights": "fp8"}, "one of bf16, int8, int4"),
        ({"model": ["m"]}, "needs a model"),
        ({"model": "m", "num_speculative_tokens": 2.5}, "it must be 1 to 7"),
        ({"method": ["ngram"]}, "must be draft_model or ngram"),
        ({"model": "m", "num_tokens": 3}, "the key 'num_tokens' is unknown"),
        ({"method": "ngram", "draft_window": 512}, "not for method ngram"),
    ],
)
def test_what_is_wrong_is_refused_before_a_model_is_known(given: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as error:
        check_options(Options(speculative_config=given))
    assert error.value.param == "speculative_config"


def test_both_settings_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="leave one of them out"):
        check_options(Options(speculate=2, speculative_config={"model": "m"}))


def test_the_draft_model_has_an_engine_of_its_own_in_the_plan(folders: dict[str, Path]) -> None:
    target = load_config(folders["target"])
    plain = complete(folders["target"], target, Options(prompt_tokens=256, chunk=64, kv_budget=128, slots=2))
    given = json.dumps({"model": str(folders["drafter"]), "num_speculative_tokens": 2, "draft_window": 128})
    asked = Options(speculative_config=given, prompt_tokens=256, chunk=64, kv_budget=128, slots=2)
    drafting = complete(folders["target"], target, asked)
    assert drafting.speculate == 2
    own = drafting.drafter
    assert own is not None
    assert (own.model_dir, own.slots, own.capacity, own.kv.policy) == (folders["drafter"], 2, 128, "streaming")
    assert own.weights == "int4"
    parts = [engine_footprint(target, config) for config in (plain, own)]
    whole = engine_footprint(target, drafting)
    assert whole.weights == sum(part.weights for part in parts)
    assert whole.slot == sum(part.slot for part in parts)
    assert whole.staging == sum(part.staging for part in parts)
    assert whole.reserve == parts[0].reserve


def test_another_vocabulary_is_refused_with_both_sizes(folders: dict[str, Path]) -> None:
    with pytest.raises(InvalidRequest, match="vocabulary of 64 tokens and the model 199"):
        complete(folders["target"], load_config(folders["target"]), with_drafter(folders["other"]))


def test_ranks_have_no_draft_model(folders: dict[str, Path]) -> None:
    target = load_config(folders["target"])
    config = complete(folders["target"], target, Options(prompt_tokens=256, chunk=64, kv_budget=128))
    wanted = of_engine(target, config.slot_format, config.kv, Start(3, 2, draft_model="m"))
    with pytest.raises(InvalidRequest, match="is not implemented with tensor_parallel 2"):
        refuse(wanted)
