"""Ranks compute what one rank computes: the same logits, the same kept tokens, the same answers."""

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from ringkv.base.errors import InvalidRequest, UnsupportedModel
from ringkv.base.kv import KVChoice
from ringkv.base.ranks import Rank
from ringkv.base.selectors import TOVA, ExpectedAttention, KeyDiff, KVzip, Selector, SnapKV
from ringkv.cache.compress.vote_reduction import NoReduction
from ringkv.engine import lanes
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.models.config import load_config
from ringkv.plan.engine_footprint import engine_footprint
from ringkv.plan.footprint import slot_bytes, weight_bytes
from ringkv.plan.shapes import Shape
from tests.engine import tiny
from tests.engine.rank_threads import on_ranks
from tests.engine.test_engine import prompt
from tests.engine.test_golden import EXPERTS, GEMMA3N, GPT_OSS, GROUPED, LATENT

HEADS = {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 224}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", HEADS | {"attention_bias": True, "mlp_bias": True}),
    "tied": ("Llama", HEADS | {"tie_word_embeddings": True, "vocab_size": 199}),
    "uneven": ("Llama", {"num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 224}),
    "qwen3-moe": ("Qwen3Moe", EXPERTS | HEADS | {"norm_topk_prob": True, "mlp_only_layers": [1]}),
    "qwen2-moe": ("Qwen2Moe", EXPERTS | HEADS | {"shared_expert_intermediate_size": 64}),
    "glm4-moe": ("Glm4Moe", GROUPED | HEADS),
    "gpt-oss": ("GptOss", GPT_OSS | HEADS),
    "deepseek": ("DeepseekV3", LATENT | HEADS | {"q_lora_rank": 48, "num_key_value_heads": 16}),
    "deepseek-v2": ("DeepseekV2", LATENT | HEADS | {"q_lora_rank": None, "num_key_value_heads": 16}),
}
CHOICE = tiny.choice("snapstream")
SELECTORS = (SnapKV(window=8, groups="max"), TOVA(), KeyDiff(), ExpectedAttention(window=8), KVzip())


class Served(NamedTuple):
    kept: list[np.ndarray]  # of each layer, [H, live]
    tokens: list[int]
    logits: torch.Tensor


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return tiny.save_all(tmp_path_factory, MODELS)


def served(engine: LocalEngine, kv: KVChoice) -> Served:
    """Read a prompt, keep some of it and decode until the ring has wrapped."""
    asked = tiny.request(prompt(130), kv=kv)
    tiny.enter(engine, asked)
    return Served(engine.kept(0, kv), *tiny.decode(engine, 24))


def check(folder: Path, count: int, kv: KVChoice = CHOICE) -> None:
    """Compare each of so many ranks with one that has the whole model."""
    config, work = tiny.config(folder, threads=1, capacity=kv.budget), partial(served, kv=kv)
    alone = work(build(config))
    for index, one in enumerate(on_ranks(config, count, work)):
        assert one.tokens == alone.tokens
        torch.testing.assert_close(one.logits, alone.logits, rtol=1e-5, atol=1e-5)
        for kept, whole in zip(one.kept, alone.kept, strict=True):
            own = Rank(index, count).heads(len(whole))
            assert (kept == whole[own.start : own.stop]).all()


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *product(("llama", "qwen3-moe", "deepseek"), (2, 4, 8, 16)),
        *product(("tied", "qwen2-moe", "glm4-moe", "gpt-oss", "deepseek-v2"), (4,)),
        ("uneven", 2),
        ("llama", 3),
    ],
)
def test_ranks_keep_the_tokens_and_give_the_logits_of_one_rank(name: str, count: int, folders: dict[str, Path]) -> None:
    check(folders[name], count)


@pytest.mark.parametrize(("policy", "budget"), [("full", 192), ("streaming", 64), ("snapkv", 192)])
@pytest.mark.parametrize("name", ["llama", "deepseek"])
def test_policies_are_those_of_one_rank(name: str, policy: str, budget: int, folders: dict[str, Path]) -> None:
    check(folders[name], 4, tiny.choice(policy, budget=budget))


@pytest.mark.parametrize("select", SELECTORS, ids=lambda select: select.name)
@pytest.mark.parametrize(("name", "count"), [("llama", 8), ("deepseek", 4), ("uneven", 2)])
def test_selectors_count_the_votes_of_all_ranks(
    name: str, count: int, select: Selector, folders: dict[str, Path]
) -> None:
    check(folders[name], count, tiny.choice("snapstream", select))


@pytest.mark.parametrize("name", ["llama", "deepseek"])
def test_votes_that_are_not_added_up_are_noticed(
    name: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "vote_reduction", lambda *_: NoReduction())
    with pytest.raises(AssertionError):
        check(folders[name], 8)


@pytest.mark.parametrize(("name", "count"), [("llama", 2), ("tied", 8), ("uneven", 2), ("llama", 16)])
def test_each_rank_has_the_bytes_of_the_plan(name: str, count: int, folders: dict[str, Path]) -> None:
    config = tiny.config(folders[name], threads=1)
    found = on_ranks(config, count, lambda engine: (engine.weight_bytes, engine.limits.slot_bytes))
    for index, (weights, slot) in enumerate(found):
        shape = Shape.of(load_config(folders[name]).of_rank(Rank(index, count), "network"), name)
        assert weights == weight_bytes(shape, "float32")
        assert slot == slot_bytes(shape, config.capacity, "float32")
    planned = engine_footprint(load_config(folders[name]), replace(config, rank=Rank(0, count)))
    assert (planned.weights, planned.slot) == tuple(count * max(each) for each in zip(*found, strict=True))


def test_a_number_of_ranks_that_does_not_divide_the_heads_is_refused(
    folders: dict[str, Path],
) -> None:
    with pytest.raises(InvalidRequest, match=r"tensor_parallel 6 does not .* choose one of 1, 2, 3, 4, 8, 16"):
        build(tiny.config(folders["llama"], rank=Rank(0, 6), exchange="network"))


def test_layers_that_ranks_cannot_divide_yet_are_named(tmp_path: Path) -> None:
    tiny.save(tmp_path, "Gemma3n", **GEMMA3N)
    with pytest.raises(UnsupportedModel, match="tensor parallel is not implemented for AltUpLayer layers"):
        build(tiny.config(tmp_path, rank=Rank(0, 2), exchange="network"))
