"""Each pair of features either answers, or is refused by CANNOT with the setting at fault and the reason."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.pairs import complete as with_needed
from bench.pairs import pairs, refusal
from ringkv.base.cannot import CANNOT, INSTEAD, Feature
from ringkv.base.config import EngineConfig
from ringkv.base.errors import InvalidRequest
from ringkv.cli.roles import RoleOptions
from ringkv.engine import build as building
from ringkv.engine.build import build
from ringkv.handoff.identity import Identity
from ringkv.models.config import load_config
from ringkv.plan.complete import complete
from ringkv.plan.options import Options
from ringkv.plan.speculation import with_model
from tests.engine import tiny
from tests.engine.test_golden import GEMMA3, LATENT
from tests.engine.test_shared import LAYERS, saved

USUAL = Options(
    kv_policy="snapstream", kv_budget=64, kv_recent=16, prompt_tokens=256, chunk=16, slots=2, dtype="float32",
    graphs="off", threads=1,
)  # fmt: skip
PAGES = {"kv_policy": "arkvale", "kv_page": 16}
SETTINGS: Mapping[Feature, dict[str, Any]] = {
    "draft model": {"speculate": None, "speculative_config": {"model": "the model itself", "draft_window": 64}},
    "drafts": {"speculate": 3},
    "continue": {"kv_turns": "continue", "prefix_store": "1MB"},
    "ragged heads": {"kv_heads": "global"},
    "zipcache": {"kv_format": "zipcache", "kv_format_skip": 0},
    "int8": {"kv_format": "int8"},
    "int4": {"kv_format": "int4", "kv_format_skip": 0},
    "selector joins heads": {"kv_select": "tova"},
    "selector prefills twice": {"kv_select": "kvzip"},
    "tier on disk": {**PAGES, "kv_tier": "a folder of each test"},
    "tier in host memory": {**PAGES, "kv_tier": "memory", "device": "cuda:0"},
    "pages": PAGES,
    "reviews": {"kv_policy": "scissorhands", "kv_review": 16},
    "every token": {"kv_policy": "full", "kv_budget": None},
    "workspace": {"prefill_workspace": 192},
    "ranks": {"tensor_parallel": 2},
    "cuda": {"device": "cuda:0"},
}
MODELS: Mapping[Feature, tuple[str, dict[str, Any]]] = {
    "latents": ("DeepseekV3", LATENT),
    "only windows": ("Mistral", {"sliding_window": 16}),
    "some windows": ("Gemma3", GEMMA3),
}
ELSEWHERE: frozenset[Feature] = frozenset({"handoff", "ranks", "cuda"})  # an engine alone on a CPU has none of these
UNCHANGED: tuple[Feature, ...] = ("draft model", "drafts", "continue", "workspace", "tier on disk")
"""Features that do not change the greedy tokens of a first, short prompt."""
TOKENS = 17  # a review comes before the last one
Pair = tuple[Feature, ...]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, llama_dir: Path) -> Mapping[str, Path]:
    """Tiny checkpoints by the feature of their caches; "": none."""
    whole, shared = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("shared")
    tiny.save(whole, "Llama", num_hidden_layers=LAYERS)
    return {"": llama_dir, "shared caches": saved(whole, shared, 2), **tiny.save_all(tmp_path_factory, MODELS)}


def configured(features: Pair, folders: Mapping[str, Path], disk: Path) -> EngineConfig:
    """Return the configuration of an engine with these features. Raises InvalidRequest if it is refused."""
    options = USUAL
    for feature in features:
        options = replace(options, **SETTINGS.get(feature, {}))
    if "tier on disk" in features:
        options = replace(options, kv_tier=str(disk))
    if "handoff" in features:
        options = RoleOptions(role="prefill").adapted(options)
    folder = folders[next((feature for feature in features if feature in folders), "")]
    if "draft model" in features:
        options = with_model(options, folder)
    config = complete(folder, load_config(folder), options)
    if "handoff" in features:
        Identity.of(config)
    return config


@pytest.mark.parametrize("first", INSTEAD)
def test_a_pair_is_accepted_unless_the_table_refuses_it(
    first: Feature, folders: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGKV_RANKS_KEY", "0" * 64)
    for pair in (pair for pair in pairs() if pair[0] == first):
        together = refusal(pair)
        if together is None:
            if not {"ranks", "shared caches", *MODELS} >= {
                *pair
            }:  # some models' heads cannot be divided over two ranks
                configured(pair, folders, tmp_path)
            continue
        with pytest.raises(InvalidRequest) as refused:
            configured(pair, folders, tmp_path)
        at_fault = next(feature for feature in INSTEAD if feature in together)
        assert CANNOT[together].reason in str(refused.value), pair
        assert INSTEAD[at_fault] in str(refused.value), pair
        assert refused.value.param in SETTINGS.get(at_fault, {}), pair


@pytest.mark.parametrize("together", [key for key in CANNOT if len(key) > 2], ids=lambda key: ", ".join(sorted(key)))
def test_three_features_are_refused_that_are_accepted_in_pairs(
    together: frozenset[Feature], folders: Mapping[str, Path], tmp_path: Path
) -> None:
    features = tuple(feature for feature in INSTEAD if feature in together)
    with pytest.raises(InvalidRequest) as refused:
        configured(features, folders, tmp_path)
    assert CANNOT[together].reason in str(refused.value)
    for left_out in features:
        configured(tuple(feature for feature in features if feature != left_out), folders, tmp_path)


def answer(features: Pair, folders: Mapping[str, Path], disk: Path) -> list[int]:
    """Return greedy tokens, enough for a review, of a prompt that evicts."""
    engine = build(configured(features, folders, disk))
    asked = tiny.request(tiny.prompt(90), "r", engine.default_kv, max_tokens=TOKENS, ignore_eos=True)
    return tiny.serve(engine, asked)["r"]


@pytest.mark.slow  # builds about 150 engines, a minute of one core
@pytest.mark.parametrize("first", [feature for feature in INSTEAD if feature not in ELSEWHERE])
def test_a_pair_answers_with_the_tokens_of_its_parts_if_one_of_them_changes_none(
    first: Feature, folders: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "_load_kernels", lambda *_: None)
    for pair in (pair for pair in pairs() if pair[0] == first and refusal(pair) is None):
        if with_needed(pair) & ELSEWHERE:
            continue
        tokens = answer(pair, folders, tmp_path)
        assert len(tokens) == TOKENS, pair
        for changing in (tuple(part for part in pair if part != same) for same in pair if same in UNCHANGED):
            alone = (*changing, "pages") if "tier on disk" in pair and "tier on disk" not in changing else changing
            assert tokens == answer(alone, folders, tmp_path), pair
