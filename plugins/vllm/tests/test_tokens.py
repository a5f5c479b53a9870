"""Greedy tokens of vLLM with the plug-in, against a SnapStream in plain torch: blocks, chunks and caches."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("vllm")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import reference
import torch
import transformers
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.exceptions import VLLMValidationError

BUDGET, COUNT, LONGEST = 128, 80, 1024
PROMPTS = (1, 40, 95, 96, 97, 127, 128, 129, 160, 161, 300, 520, 700)
SETTINGS = {"kv_budget": BUDGET, "kv_recent": 32, "kv_window": 16, "allow_full": True}


def greedy(**settings: Any) -> SamplingParams:
    shape = {"temperature": 0, "max_tokens": COUNT, "ignore_eos": True, "detokenize": False}
    return SamplingParams(**shape, extra_args=settings)


GREEDY = greedy()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("llama")
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=199,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=LONGEST,
    )
    model = transformers.LlamaForCausalLM(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(made)
    return made


def prompts() -> list[list[int]]:
    random = Random(5)
    stem = random.choices(range(3, 199), k=700)
    return [stem[:n] if n % 2 else random.choices(range(3, 199), k=n) for n in PROMPTS]


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    return [reference.answer(folder, prompt, BUDGET, COUNT) for prompt in prompts()]


@contextmanager
def started(folder: Path, settings: Any = SETTINGS, **changes: Any) -> Iterator[LLM]:
    ours = {
        "scheduler_cls": "ringkv_vllm.scheduler.SnapStreamScheduler",
        "worker_cls": "ringkv_vllm.worker.SnapStreamCPUWorker",
        "additional_config": {"ringkv": settings},
        "logits_processors": ["ringkv_vllm.requests:RequestSettings"],
    }
    usual = {"dtype": "float32", "enforce_eager": True, "block_size": 32, "max_num_batched_tokens": 256}
    usual |= {"skip_tokenizer_init": True, "max_model_len": LONGEST, "max_num_seqs": 4}
    usual |= {"kv_cache_memory_bytes": 64 << 20}
    llm = LLM(str(folder), **(usual | (ours if settings else {}) | changes))
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        cleanup_dist_env_and_memory()


def answers(llm: LLM, params: Any = GREEDY) -> list[list[int]]:
    given = [{"prompt_token_ids": prompt} for prompt in prompts()]
    return [list(out.outputs[0].token_ids) for out in llm.generate(given, params, use_tqdm=False)]


@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize(("block", "chunk"), [(32, 256), (32, 64), (64, 96), (128, 512)])
def test_tokens_are_those_of_the_reference(
    folder: Path, expected: list[list[int]], block: int, chunk: int, caches: bool
) -> None:
    with started(folder, block_size=block, max_num_batched_tokens=chunk, enable_prefix_caching=caches) as llm:
        for _ in range(2):
            assert answers(llm) == expected


@pytest.mark.parametrize("caches", [False, True])
def test_tokens_are_the_same_after_forced_preemptions(
    folder: Path, expected: list[list[int]], caches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringkv_vllm.manager.SnapStreamManager._reserved", lambda *_: 0)
    seen: list[str] = []
    preempt = "ringkv_vllm.scheduler.SnapStreamMixin._preempt_request"
    from ringkv_vllm.scheduler import SnapStreamMixin

    original = SnapStreamMixin._preempt_request

    def noted(self: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        seen.append(request.request_id)
        original(self, request, *args, **kwargs)

    monkeypatch.setattr(preempt, noted)
    many = [{"prompt_token_ids": prompt} for prompt in prompts()[:2] * 10]
    with started(folder, num_gpu_blocks_override=40, max_num_seqs=20, enable_prefix_caching=caches) as llm:
        outs = llm.generate(many, GREEDY, use_tqdm=False)
    assert [list(out.outputs[0].token_ids) for out in outs] == expected[:2] * 10
    assert seen


def test_a_budget_over_everything_gives_what_plain_vllm_gives(folder: Path) -> None:
    with started(folder, None) as llm:
        plain = answers(llm)
    with started(folder, SETTINGS | {"kv_budget": LONGEST}) as llm:
        assert answers(llm) == plain
    with started(folder) as llm:
        assert answers(llm, greedy(kv_policy="full")) == plain


def test_requests_with_budgets_of_their_own(folder: Path) -> None:
    refused = [({"kv_budget": 3}, "kv_budget 3 is less than"), ({"kv_sinks": 2}, "is set when the server starts")]
    expected = [reference.answer(folder, prompt, 64, COUNT) for prompt in prompts()]
    with started(folder) as llm:
        assert answers(llm, greedy(kv_budget=64)) == expected
        for given, said in refused:
            with pytest.raises(VLLMValidationError, match=said):
                llm.generate([{"prompt_token_ids": [5, 6]}], greedy(**given), use_tqdm=False)


def test_several_answers_to_one_prompt(folder: Path, expected: list[list[int]]) -> None:
    params = SamplingParams(n=3, top_k=1, max_tokens=COUNT, ignore_eos=True, detokenize=False)
    with started(folder, enable_prefix_caching=True) as llm:
        outs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts()], params, use_tqdm=False)
    assert [[list(each.token_ids) for each in out.outputs] for out in outs] == [[each] * 3 for each in expected]
