"""The planner's memory of a sampling step, against what torch's own profiler sees of it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from torch.profiler import ProfilerActivity, profile

from ringkv.engine.build import build
from ringkv.plan.footprint import TEMPORARIES
from tests.engine import tiny

SLOTS, VOCAB = 4, 50_000


def peak(run: Callable[[], object]) -> int:
    """The most bytes of tensors that existed at once, beside those that existed before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    assert profiled.profiler is not None
    assert profiled.profiler.kineto_results is not None
    seen = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    total = most = 0
    for event in sorted(seen, key=lambda event: event.start_ns()):
        total += event.nbytes()
        most = max(most, total)
    return most


@pytest.mark.parametrize("asked", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9, "logprobs": 3}])
def test_a_sampling_step_computes_in_no_more_memory_than_is_planned(tmp_path: Path, asked: dict[str, float]) -> None:
    tiny.save(tmp_path, "Llama", vocab_size=VOCAB)
    engine = build(tiny.config(tmp_path, slots=SLOTS))
    tiny.enter(engine, tiny.request([5, 6, 7], **asked))
    assert peak(engine.sample) <= TEMPORARIES * SLOTS * VOCAB


def test_sampling_drafts_computes_in_no_more_memory_than_is_planned(tmp_path: Path) -> None:
    tiny.save(tmp_path, "Llama", vocab_size=VOCAB)
    engine = build(tiny.config(tmp_path, slots=SLOTS, speculate=2))
    tiny.enter(engine, tiny.request([5, 6, 7], temperature=1.0))
    engine.sample()
    engine.forward({0: [5, 6]})
    assert peak(engine.sample) <= 2 * TEMPORARIES * SLOTS * VOCAB
    assert engine.limits.sampler_bytes >= SLOTS * VOCAB * (4 + 2 * 4)
