"""Ranks compute what one rank computes: the same logits, the same kept tokens, the same answers."""

from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from ringkv.base.cache_spec import SlotFormat
from ringkv.base.config import Weights
from ringkv.base.errors import InvalidRequest, UnsupportedModel
from ringkv.base.kv import KVChoice
from ringkv.base.progress import silent
from ringkv.base.ranks import ONE_RANK, Rank
from ringkv.base.selectors import TOVA, KeyDiff, KVzip, Selector, SnapKV
from ringkv.cache.compress.vote_reduction import VoteReduction
from ringkv.engine import prompt_views, reviews
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.engine.load import load
from ringkv.models.config import ModelConfig, load_config
from ringkv.plan.engine_footprint import engine_footprint
from ringkv.plan.footprint import slot_bytes, weight_bytes
from ringkv.plan.shapes import Shape
from ringkv.weights.checkpoint import Checkpoint
from tests.engine import tiny
from tests.engine.rank_threads import on_ranks
from tests.engine.test_engine import prompt
from tests.engine.test_golden import EXPERTS, GEMMA3N, GPT_OSS, GROUPED, LATENT
from tests.refusals import refusal

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
CHOICE, WHOLE_EXPERTS = tiny.choice("snapstream"), Rank(expert_parallel=True)
REVIEWED = tiny.choice("scissorhands", review=8, budget=128)  # of a prompt of 130: about half of the weights are low
SELECTORS = (SnapKV(window=8), TOVA(), KeyDiff(), KVzip())


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


def check(folder: Path, count: int, kv: KVChoice = CHOICE, rank: Rank = ONE_RANK, workspace: int = 0) -> None:
    """Compare each of so many ranks with one that has the whole model."""
    sizes = {
        "capacity": kv.budget,
        "prefill_workspace": workspace,
        "slot_format": SlotFormat(queries=kv.review_interval),
    }
    config, work = tiny.config(folder, threads=1, rank=rank, **sizes), partial(served, kv=kv)
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
        *product(("llama", "qwen3-moe", "deepseek"), (2, 4)),
        *(pytest.param(*more, marks=pytest.mark.slow) for more in product(("llama", "qwen3-moe", "deepseek"), (8, 16))),
        *product(("tied", "qwen2-moe", "glm4-moe", "gpt-oss", "deepseek-v2"), (4,)),
        ("uneven", 2),
        ("llama", 3),
    ],
)
def test_ranks_keep_the_tokens_and_give_the_logits_of_one_rank(name: str, count: int, folders: dict[str, Path]) -> None:
    check(folders[name], count)


@pytest.mark.slow  # builds many engines
@pytest.mark.parametrize(
    ("name", "count"),
    [*product(("qwen3-moe", "deepseek"), (2, 4)), ("qwen3-moe", 3), ("qwen2-moe", 2), ("glm4-moe", 8), ("gpt-oss", 2)],
)
def test_ranks_with_whole_experts_give_the_logits_of_one_rank(name: str, count: int, folders: dict[str, Path]) -> None:
    check(folders[name], count, rank=WHOLE_EXPERTS)


@pytest.mark.parametrize(("name", "count"), [("llama", 2), ("llama", 8), ("deepseek", 4)])
def test_ranks_compact_a_lane_as_one_rank_does(name: str, count: int, folders: dict[str, Path]) -> None:
    check(folders[name], count, workspace=128)  # of a prompt of 130


@pytest.mark.parametrize(("name", "count"), [("llama", 2), ("llama", 8), ("uneven", 2)])
def test_ranks_review_slots_as_one_rank_does(name: str, count: int, folders: dict[str, Path]) -> None:
    """Of 4 key-value heads on 8 ranks, each is on two, with half of its query heads."""
    check(folders[name], count, REVIEWED)


def test_a_review_that_leaves_out_query_heads_of_another_rank_is_noticed(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviews, "reductions", lambda decoder: [VoteReduction() for _ in decoder.groups])
    with pytest.raises(AssertionError):
        check(folders["llama"], 8, REVIEWED)


def test_an_expert_that_two_ranks_compute_is_noticed(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def one_more(rank: Rank, experts: int) -> range:
        first = experts * rank.index // rank.count
        return range(first, min(experts, experts * (rank.index + 1) // rank.count + 1))

    monkeypatch.setattr(Rank, "experts", one_more)
    with pytest.raises(AssertionError):
        check(folders["qwen3-moe"], 2, rank=WHOLE_EXPERTS)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
def test_a_rank_reads_only_its_experts_and_has_the_bits_that_one_rank_has_of_them(
    weights: Weights, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, read, read_into = load_config(folders["qwen3-moe"]), list[str](), Checkpoint.read_into

    def loaded(rank: Rank) -> dict[str, torch.Tensor]:
        read.clear()
        return load(folders["qwen3-moe"], config, torch.bfloat16, torch.device("cpu"), silent, weights, rank).layers[0]

    monkeypatch.setattr(
        Checkpoint, "read_into", lambda self, name, *rest: (read.append(name), read_into(self, name, *rest))
    )
    whole = loaded(ONE_RANK)
    for index in range(3):
        mine = loaded(Rank(index, 3, expert_parallel=True))
        own = range(8 * index // 3, 8 * (index + 1) // 3)
        assert {int(name.split(".experts.")[1].split(".")[0]) for name in read if ".experts." in name} == set(own)
        for name in ("experts_gate_up", "experts_down"):
            assert mine[name].dim() > 2, "not packed"
            assert torch.equal(mine[name], torch.cat(whole[name].chunk(8)[own.start : own.stop]))


@pytest.mark.parametrize(("policy", "budget"), [("full", 192), ("streaming", 64), ("snapkv", 192)])
@pytest.mark.parametrize("name", ["llama", "deepseek"])
def test_policies_are_those_of_one_rank(name: str, policy: str, budget: int, folders: dict[str, Path]) -> None:
    check(folders[name], 4, tiny.choice(policy, budget=budget))


@pytest.mark.parametrize("select", SELECTORS, ids=lambda select: select.name)
@pytest.mark.parametrize(
    ("name", "count"), [pytest.param("llama", 8, marks=pytest.mark.slow), ("deepseek", 4), ("uneven", 2)]
)
def test_selectors_count_the_votes_of_all_ranks(
    name: str, count: int, select: Selector, folders: dict[str, Path]
) -> None:
    check(folders[name], count, tiny.choice("snapstream", select))


@pytest.mark.slow  # builds many engines
@pytest.mark.parametrize("name", ["llama", "deepseek"])
def test_votes_that_are_not_added_up_are_noticed(
    name: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_views, "reductions", lambda decoder: [VoteReduction() for _ in decoder.groups])
    with pytest.raises(AssertionError):
        check(folders[name], 8)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        *[("llama", Rank(0, 2)), ("tied", Rank(0, 8)), ("uneven", Rank(0, 2)), ("llama", Rank(0, 16))],
        *[("qwen3-moe", Rank(0, 3, True)), ("deepseek", Rank(0, 4, True)), ("gpt-oss", Rank(0, 2, True))],
    ],
)
def test_each_rank_has_the_bytes_of_the_plan(name: str, rank: Rank, folders: dict[str, Path]) -> None:
    config, count = tiny.config(folders[name], threads=1, rank=replace(rank, count=1)), rank.count
    padding = router_padding(load_config(folders[name]))
    found = on_ranks(config, count, lambda engine: (engine.weight_bytes, engine.limits.slot_bytes))
    for index, (weights, slot) in enumerate(found):
        shape = Shape.of(load_config(folders[name]).of_rank(rank.at(index), "network"), name)
        assert weights == weight_bytes(shape, "float32") + padding
        assert slot == slot_bytes(shape, config.capacity, "float32")
    planned = engine_footprint(load_config(folders[name]), replace(config, rank=rank))
    most = [max(each) for each in zip(*found, strict=True)]
    assert (planned.weights, planned.slot) == (count * (most[0] - padding), count * most[1])


def router_padding(config: ModelConfig) -> int:
    """Bytes of the zeros that fill up routers of a few experts to 32 rows, which the plan does not count."""
    every = (weight for layer in range(config.num_layers) for weight in config.layer_weights(layer).values())
    return sum(4 * (-weight.shape[0] % 32) * prod(weight.shape[1:]) for weight in every if weight.pack == "router")


def test_a_number_of_ranks_that_does_not_divide_the_heads_is_refused(
    folders: dict[str, Path],
) -> None:
    with refusal("tensor_parallel", "1, 2, 3, 4, 8, 16"):
        build(tiny.config(folders["llama"], rank=Rank(0, 6), exchange="network"))


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [
        ("llama", 2, "this model has no experts; leave it out"),
        ("qwen3-moe", 16, "cannot divide 8 experts among 16 ranks; use at most 8 ranks, or leave it out"),
    ],
)
def test_experts_that_cannot_be_divided_are_refused(
    name: str, count: int, message: str, folders: dict[str, Path]
) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        build(tiny.config(folders[name], rank=Rank(0, count, expert_parallel=True), exchange="network"))
    assert refused.value.param == "expert_parallel"


def test_layers_that_ranks_cannot_divide_yet_are_named(tmp_path: Path) -> None:
    tiny.save(tmp_path, "Gemma3n", **GEMMA3N)
    with pytest.raises(UnsupportedModel, match="AltUpLayer"):
        build(tiny.config(tmp_path, rank=Rank(0, 2), exchange="network"))
