"""Ranks as processes: the answers of one process, and one sentence about a rank that has ended."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest

from ringkv.base.config import EngineConfig
from ringkv.base.errors import EngineDied, UnsupportedModel
from ringkv.base.ranks import Rank, RankEnded
from ringkv.machine.compiler import missing_for_graphs
from ringkv.ranks.build import build
from ringkv.ranks.engine import RankedEngine
from ringkv.worker.client import EngineClient
from tests.engine import tiny
from tests.engine.test_engine import prompt
from tests.engine.test_families import answers
from tests.engine.test_golden import EXPERTS, GEMMA3N, LATENT
from tests.engine.test_ranks import HEADS
from tests.worker.asking import all_of, request

pytestmark = pytest.mark.usefixtures("compiled")
MODELS = {
    "llama": ("Llama", HEADS),
    "qwen3-moe": ("Qwen3Moe", EXPERTS | HEADS | {"norm_topk_prob": True}),
    "deepseek": ("DeepseekV3", LATENT | HEADS | {"q_lora_rank": 48, "num_key_value_heads": 16}),
}
MODELS["deepseek-experts"] = ("DeepseekV3", MODELS["deepseek"][1] | {"first_k_dense_replace": 0})  # one kind of layer
PROMPTS = (90, 40, 150)


@pytest.fixture(scope="module", params=("llama", "deepseek"))
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    folder = tmp_path_factory.mktemp(request.param)
    kind, changes = MODELS[request.param]
    tiny.save(folder, kind, **changes)
    return tiny.config(folder, threads=1, store_bytes=1 << 22)


def others() -> list[BaseProcess]:
    """Return the processes of ranks that this process has started."""
    return [one for one in active_children() if one.name.startswith("ringkv-rank")]


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_answer_as_one_process(count: int, config: EngineConfig) -> None:
    prompts = [prompt(length) for length in PROMPTS]
    engine = build(replace(config, rank=Rank(0, count)))
    assert isinstance(engine, RankedEngine)
    try:
        assert len(others()) == count - 1
        whole = build(config)
        copies = count if config.model_dir.name.startswith("deepseek") else 1  # each rank has all of a latent
        assert len(engine.limits.rank_bytes) == count
        assert engine.limits.request_bytes == copies * whole.limits.slot_bytes
        for _ in range(2):  # the second time, prompts begin with entries of the prefix store
            assert answers(engine, *prompts) == answers(whole, *prompts)
    finally:
        engine.close()
    assert not others()


@pytest.mark.slow  # processes
@pytest.mark.parametrize("config", ["qwen3-moe"], indirect=True)
def test_ranks_with_whole_experts_answer_as_one_process(config: EngineConfig) -> None:
    check_answers(config, Rank(0, 3, expert_parallel=True))


@pytest.mark.slow  # processes
@pytest.mark.parametrize("config", ["deepseek"], indirect=True)
def test_ranks_that_divide_the_slots_answer_as_one_process(config: EngineConfig) -> None:
    """More prompts than slots, so that a slot changes hands while the others decode."""
    check_answers(replace(config, slots=4, attention_parallel="slots"), Rank(0, 2), (*PROMPTS, 60, 70, 33))


@pytest.mark.slow
@pytest.mark.parametrize("config", ["deepseek"], indirect=True)
def test_six_ranks_that_divide_slots_and_heads_unevenly_answer_as_one_process(config: EngineConfig) -> None:
    check_answers(replace(config, slots=6, attention_parallel="slots"), Rank(0, 6))


def check_answers(config: EngineConfig, rank: Rank, lengths: Sequence[int] = PROMPTS) -> None:
    """Compare the greedy tokens of so many processes with those of one."""
    prompts = [prompt(length) for length in lengths]
    engine = build(replace(config, rank=rank))
    try:
        assert len(others()) == rank.count - 1
        assert answers(engine, *prompts) == answers(build(replace(config, attention_parallel="heads")), *prompts)
    finally:
        engine.close()
    assert not others()


@pytest.mark.slow
@pytest.mark.skipif(missing_for_graphs() is not None, reason=str(missing_for_graphs()))
@pytest.mark.parametrize("config", ["deepseek-experts"], indirect=True)
def test_compiled_graphs_of_ranks_give_the_tokens_of_plain_calls(config: EngineConfig) -> None:
    prompts = [prompt(length) for length in PROMPTS]
    engine = build(replace(config, rank=Rank(0, 2), graphs="compiled"))
    assert isinstance(engine, RankedEngine)
    try:
        assert answers(engine, *prompts) == answers(build(config), *prompts)
    finally:
        engine.close()


@pytest.mark.slow  # processes
def test_a_rank_that_is_killed_is_named_and_ends_the_others(config: EngineConfig) -> None:
    engine = build(replace(config, rank=Rank(0, 3)))
    assert isinstance(engine, RankedEngine)
    began = time.monotonic()
    others()[0].kill()
    with pytest.raises(RankEnded, match=r"rank [12] of 3 .*SIGKILL"):
        time.sleep(30)
    assert time.monotonic() - began < 10
    with pytest.raises(RankEnded, match=r"rank [12] of 3"):
        engine.release(0)
    engine.close()
    assert not others()


def test_why_a_rank_does_not_start_is_raised(tmp_path: Path) -> None:
    tiny.save(tmp_path, "Gemma3n", **GEMMA3N)
    with pytest.raises(UnsupportedModel, match="AltUpLayer"):
        build(tiny.config(tmp_path, rank=Rank(0, 2)))
    assert not others()


@pytest.mark.slow  # processes
def test_the_engines_process_ends_with_a_rank_and_says_which(config: EngineConfig) -> None:
    async def main() -> tuple[list[object], str]:
        client = await EngineClient.start(replace(config, rank=Rank(0, 2)))
        answer = await all_of(client, request("one", max_tokens=5))
        (rank,) = psutil.Process(client.pid).children()
        rank.kill()
        death = await asyncio.wait_for(client.ended(), 20)
        with pytest.raises(EngineDied, match="rank 1 of 2"):
            await all_of(client, request("two"))
        await client.close()
        return answer, death.message

    answer, message = asyncio.run(main())
    assert len(answer) == 6
    assert "rank 1 of 2" in message
    assert not others()
