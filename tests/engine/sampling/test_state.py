"""What a request leaves in the sampler's planes."""

import pytest
import torch

from ringkv.base.request import Request
from ringkv.base.sampling import SamplerTier, SamplingParams
from ringkv.engine.sampling.state import SamplingState
from ringkv.kernels.sampling.tiers import SAMPLERS

VOCAB = 90
PLAIN = SamplingParams(temperature=0.8, top_p=0.9, seed=3)
PENALTIES = SamplingParams(
    repetition_penalty=1.5, presence_penalty=0.5, logit_bias={5: 9.0}, temperature=0.8, min_tokens=9, seed=3
)


def entered(state: SamplingState, params: SamplingParams, prompt: tuple[int, ...]) -> SamplingState:
    """Let a request enter the first slot and sample a few tokens."""
    state.enter(0, Request("r", prompt, params, eos=(prompt[0],)))
    for token in prompt:
        state.count(torch.tensor([[token + 1]]))
    return state


def sampled(state: SamplingState, count: int = 40) -> list[int]:
    """Sample from random logits with the tier of penalties and truncation, which reads all planes."""
    torch.manual_seed(0)
    logits, forced = torch.randn(count, 1, VOCAB) * 2, torch.tensor([-1])
    inputs = [state.inputs(one, forced, torch.tensor([step])) for step, one in enumerate(logits)]
    return [int(SAMPLERS[SamplerTier.TRUNCATED](one)[0]) for one in inputs]


def test_an_end_token_outside_the_vocabulary_marks_nothing() -> None:
    state = SamplingState.neutral(2, 8, torch.device("cpu"))
    state.enter(1, Request("r", (1,), SamplingParams(), eos=(3, 8, 99)))
    assert state.ends.tolist() == [[False] * 8, [id == 3 for id in range(8)]]


@pytest.mark.parametrize("then", [PLAIN, PENALTIES], ids=["plain", "penalties"])
@pytest.mark.parametrize("before", [PLAIN, PENALTIES], ids=["after plain", "after penalties"])
def test_a_request_samples_in_a_used_slot_as_in_a_new_one(before: SamplingParams, then: SamplingParams) -> None:
    used = entered(SamplingState.neutral(1, VOCAB, torch.device("cpu")), before, tuple(range(0, 60, 2)))
    new = SamplingState.neutral(1, VOCAB, torch.device("cpu"))
    assert sampled(entered(used, then, (7, 8, 9))) == sampled(entered(new, then, (7, 8, 9)))


def test_penalties_change_what_is_sampled() -> None:
    """Otherwise the test above could not fail."""
    state = SamplingState.neutral(1, VOCAB, torch.device("cpu"))
    assert sampled(entered(state, PLAIN, (7, 8, 9))) != sampled(entered(state, PENALTIES, (7, 8, 9)))


def test_only_a_repetition_penalty_marks_the_prompt() -> None:
    state = SamplingState.neutral(2, VOCAB, torch.device("cpu"))
    entered(state, PENALTIES, (7, 8, 9))
    state.enter(1, Request("r", (7, 8, 9), PLAIN))
    assert [row.nonzero()[:, 0].tolist() for row in state.in_prompt] == [[7, 8, 9], []]
