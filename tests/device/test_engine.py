"""The engine on the device returns the CPU's tokens in float32, with and without graphs, and does not sync the host."""

from pathlib import Path

import pytest
import torch

from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from tests.engine import tiny
from tests.engine.test_golden import MODELS

pytestmark = pytest.mark.device

PROMPT = [3 + 7 * i % 190 for i in range(200)]
GREEDY: dict[str, object] = {}
SAMPLED: dict[str, object] = {"temperature": 0.8, "top_k": 20, "seed": 5, "repetition_penalty": 1.1, "logprobs": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("llama")
    tiny.save(made, "Llama")
    return made


def engine(folder: Path, device: str, graphs: str) -> LocalEngine:
    return build(tiny.config(folder, device=device, graphs=graphs))


@pytest.fixture(scope="module")
def captured(folder: Path) -> LocalEngine:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    return engine(folder, "cuda:0", "compiled")


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_devices_tokens_are_the_cpus(folder: Path, captured: LocalEngine, sampling: dict[str, object]) -> None:
    answers = []
    for one in (engine(folder, "cpu", "off"), engine(folder, "cuda:0", "off"), captured):
        tiny.enter(one, tiny.request(PROMPT, **sampling), slot=1)
        answers.append(tiny.decode(one, 40, slot=1))
        one.release(1)
    for tokens, logits in answers[1:]:
        assert tokens == answers[0][0]
        torch.testing.assert_close(logits.cpu(), answers[0][1], atol=1e-3, rtol=1e-3)


def test_every_way_to_sample_compiles_for_a_vocabulary_of_the_usual_size(tmp_path: Path) -> None:
    tiny.save(tmp_path, "Llama", vocab_size=49_152)
    answers = []
    for place, graphs in (("cpu", "off"), ("cuda:0", "compiled")):
        one = engine(tmp_path, place, graphs)
        tiny.enter(one, tiny.request(PROMPT, top_p=0.7, min_p=0.01, **SAMPLED), slot=1)
        answers.append(tiny.decode(one, 20, slot=1)[0])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe", "gpt-oss", "deepseek-v2", "deepseek-v3"])
def test_the_devices_tokens_are_the_cpus_with_experts_and_latents(name: str, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    tiny.save(tmp_path, kind, **changes)
    answers = []
    for place, graphs in (("cpu", "off"), ("cuda:0", "off"), ("cuda:0", "compiled")):
        one = engine(tmp_path, place, graphs)
        tiny.enter(one, tiny.request(PROMPT), slot=1)
        answers.append(tiny.decode(one, 20, slot=1))
    for tokens, logits in answers[1:]:
        assert tokens == answers[0][0]
        torch.testing.assert_close(logits.cpu(), answers[0][1], atol=1e-3, rtol=1e-3)


def test_neighbours_do_not_change_a_requests_tokens(captured: LocalEngine) -> None:
    request = tiny.request(PROMPT[:90])
    tiny.enter(captured, request, slot=0)
    alone, _ = tiny.decode(captured, 20, slot=0)
    captured.release(0)
    for slot in range(3):
        tiny.enter(captured, request if slot == 2 else tiny.request(PROMPT[: 50 + slot], temperature=1.0), slot)
    assert tiny.decode(captured, 20, slot=2)[0] == alone


def test_a_step_waits_for_the_device_only_when_it_is_read(captured: LocalEngine) -> None:
    tiny.enter(captured, tiny.request(PROMPT, **SAMPLED))
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        sampled = captured.sample()
        captured.forward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sampled.read()[0][0].logprob is not None


def test_scores_outlive_the_next_forward_step(captured: LocalEngine) -> None:
    tiny.enter(captured, tiny.request(PROMPT, **SAMPLED))
    first = captured.sample()
    at_once = first.read()[0]
    captured.forward()
    assert first.read()[0] == at_once


def test_serving_does_not_leak_device_memory(captured: LocalEngine) -> None:
    allocated = []
    for n in (30, 200, 77, 200, 150):
        tiny.enter(captured, tiny.request(PROMPT[:n]))
        tiny.decode(captured, 5)
        torch.cuda.synchronize()
        allocated.append(torch.cuda.memory_allocated())
    assert max(allocated[1:]) <= allocated[0] + (1 << 20)
