"""Compiled graphs under a real workload: built once, and the same tokens as the plain calls."""

import random
from pathlib import Path

import pytest
import torch

from ringkv.base.engine import Engine
from ringkv.base.events import Event, Finished, Token
from ringkv.base.kv import KVChoice
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.base.selectors import SnapKV
from ringkv.engine.build import build
from ringkv.machine.compiler import missing_for_graphs
from ringkv.scheduler.loop import Loop
from tests.engine import tiny
from tests.engine.test_golden import GEMMA3

pytestmark = pytest.mark.skipif(missing_for_graphs() is not None, reason=str(missing_for_graphs()))

SAMPLINGS = (
    {},
    {"temperature": 0.8},
    {"temperature": 1.1, "top_k": 5, "top_p": 0.9},
    {"repetition_penalty": 1.3, "logprobs": 2},
    {"temperature": 0.5, "min_p": 0.1, "frequency_penalty": 0.4, "min_tokens": 3},
)
POLICIES = (
    None,
    KVChoice("full", select=SnapKV(window=8)),
    KVChoice(budget=32, recent=8, select=SnapKV(window=8)),
    KVChoice("streaming", select=SnapKV(window=8)),
)


def workload(count: int) -> list[Request]:
    """Requests of different lengths, samplings and policies."""
    pick = random.Random(3)
    requests = []
    for n in range(count):
        kv = pick.choice(POLICIES)
        longest = 50 if kv and kv.policy == "full" else 250
        tokens = tuple(pick.choices(range(3, 199), k=pick.randint(1, longest)))
        sampling = SamplingParams(max_tokens=pick.randint(3, 30), seed=n, **pick.choice(SAMPLINGS))  # type: ignore[arg-type]
        requests.append(Request(f"r{n}", tokens, sampling, kv, eos=(2,)))
    return requests


def serve(engine: Engine, requests: list[Request], cancelled: set[str]) -> dict[str, tuple[list[int], str]]:
    """Run all, cancelling some at their third token: each one's tokens, and how it ended."""
    loop, tokens, ends = Loop(engine), {r.id: [] for r in requests}, {}

    def take(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Token):
                tokens[event.request_id].append(event.token)
                if event.request_id in cancelled and len(tokens[event.request_id]) == 3:
                    take(loop.cancel(event.request_id))
            elif isinstance(event, Finished):
                ends[event.request_id] = event.reason

    for request in requests:
        take(loop.submit(request))
    while not loop.idle:
        take(loop.step())
    return {name: (tokens[name], ends[name]) for name in tokens}


@pytest.mark.slow
def test_nothing_is_built_after_warm_up_and_tokens_are_those_of_the_plain_calls(llama_dir: Path) -> None:
    compiled = build(tiny.config(llama_dir, graphs="compiled"))
    built, requests = compiled.builds, workload(200)
    cancelled = {r.id for r in requests[::7] if r.sampling.max_tokens > 4}
    answers = serve(compiled, requests, cancelled)
    assert compiled.builds == built
    assert {reason for _, reason in answers.values()} >= {"length", "abort"}

    plain = serve(build(tiny.config(llama_dir)), requests[:40], cancelled)
    assert {name: answers[name] for name in plain} == plain


@pytest.mark.slow
def test_compiled_steps_with_drafts_give_the_tokens_of_plain_calls(tmp_path: Path) -> None:
    """With matrices of whole panels, whose products are our own: libraries round others as they like."""
    tiny.save(tmp_path, "Llama", vocab_size=224)
    sizes = {"dtype": "bfloat16", "slots": 1}
    compiled = build(tiny.config(tmp_path, graphs="compiled", speculate=3, **sizes))
    requests = [tiny.request(list(range(3, 33)) * 4, f"r{n}", max_tokens=60, ignore_eos=True) for n in range(2)]
    plain = build(tiny.config(tmp_path, **sizes))
    assert serve(compiled, requests, set()) == serve(plain, requests, set())


@pytest.mark.slow
def test_each_kind_of_layer_has_graphs_of_its_own(tmp_path: Path) -> None:
    tiny.save(tmp_path, "Gemma3", **GEMMA3)
    plain, compiled = (build(tiny.config(tmp_path, graphs=graphs)) for graphs in ("off", "compiled"))
    for engine in (plain, compiled):
        tiny.enter(engine, tiny.request(list(range(3, 150))))
    (tokens, logits), (same, close) = (tiny.decode(engine, 40) for engine in (plain, compiled))
    assert tokens == same
    torch.testing.assert_close(logits, close, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_another_start_builds_nothing(llama_dir: Path) -> None:
    build(tiny.config(llama_dir, graphs="compiled"))
    assert build(tiny.config(llama_dir, graphs="compiled")).builds == 0
