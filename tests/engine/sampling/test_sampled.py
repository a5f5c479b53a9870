"""What is read of a sampling step."""

import torch

from ringkv.base.engine import Sampled
from ringkv.base.events import TokenLogprob
from ringkv.engine.sampling.state import SampledStep

SCORES = (
    torch.tensor([-0.5, -1.0, -2.0]),
    torch.tensor([[4, 5, 6]] * 3),
    torch.tensor([[-0.25, -0.5, -0.75]] * 3),
)


def test_slots_that_report_log_probabilities_have_as_many_as_they_want() -> None:
    step = SampledStep(torch.tensor([5, 6, 7]), [2, None, 0], SCORES)
    top = TokenLogprob(-0.5, ((4, -0.25), (5, -0.5)))
    assert step.read() == [(Sampled(5, top),), (Sampled(6, None),), (Sampled(7, TokenLogprob(-2.0)),)]


def test_a_bad_token_has_no_log_probability() -> None:
    assert SampledStep(torch.tensor([-1, 6, -1]), [1, None, None], SCORES).read() == [
        (Sampled(None, None),),
        (Sampled(6, None),),
        (Sampled(None, None),),
    ]


def test_scores_that_no_slot_reports_are_not_read() -> None:
    scores = (torch.zeros(2, device="meta"),) * 3  # reading these would raise
    assert SampledStep(torch.tensor([3, 4]), [None, None], scores).read() == [(Sampled(3, None),), (Sampled(4, None),)]


def test_accepted_drafts_follow_the_first_token() -> None:
    more = torch.tensor([[8, 9], [1, 2], [4, -1]]), torch.tensor([1, 0, 2])
    runs = SampledStep(torch.tensor([5, 6, 7]), [None] * 3, (), more).read()
    assert [[one.token for one in run] for run in runs] == [[5, 8], [6], [7, 4, None]]
