"""What a request leaves in the sampler's planes."""

import torch

from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.engine.sampling.state import SamplingState


def test_an_end_token_outside_the_vocabulary_marks_nothing() -> None:
    state = SamplingState.neutral(2, 8, torch.device("cpu"))
    state.enter(1, Request("r", (1,), SamplingParams(), eos=(3, 8, 99)))
    assert state.ends.tolist() == [[False] * 8, [id == 3 for id in range(8)]]
