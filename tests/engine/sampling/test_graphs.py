"""The sampling graph that all tiers share if an operator serves them."""

import pytest
import torch

from ringkv.base.request import Request
from ringkv.base.sampling import SamplerTier, SamplingParams
from ringkv.engine.sampling import graphs
from ringkv.engine.sampling.state import SamplingState
from ringkv.graphs.graph import Eager

CPU = torch.device("cpu")


def test_log_probabilities_are_computed_only_if_a_running_slot_reports_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "is_compiled", lambda _: False)
    state = SamplingState.neutral(2, 90, CPU)
    graph = graphs.samplers(Eager(), 2, 90, CPU)[SamplerTier.ADJUSTED]
    rows = list(state.inputs(torch.randn(2, 90), torch.tensor([-1, -1]), torch.tensor([0, 0])))
    state.enter(0, Request("r", (1,), SamplingParams(presence_penalty=1.0)))
    assert len(graph(rows)) == 1
    state.enter(1, Request("r", (1,), SamplingParams(logprobs=2)))
    assert len(graph(rows)) == 4
    state.leave(1)
    assert len(graph(rows)) == 1
