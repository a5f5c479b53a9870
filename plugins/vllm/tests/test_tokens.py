"""Greedy tokens of vLLM with the plug-in, against a SnapStream in plain torch: blocks, chunks and caches."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import reference
from tiny import COUNT, GREEDY, LONGEST, SETTINGS, answers, greedy, prompts, started
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError


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
