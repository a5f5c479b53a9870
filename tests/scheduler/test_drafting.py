"""Drafts are fed if they pay: requests whose drafts are wrong are not slower for them. The clock is a fake one."""

from collections.abc import Mapping

import pytest

from ringkv.base.engine import Drafted
from ringkv.base.events import Finished
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.scheduler.job import PromptLookup
from ringkv.scheduler.loop import Loop
from tests import toy

LONG, PLAIN, DRAFTED = 400, 0.010, 0.015  # tokens; seconds of a step without and with drafts


class Timed(toy.ToyEngine):
    """A forward pass takes the seconds above of `now`."""

    now = 0.0

    def forward(self, drafts: Drafted | None = None) -> Mapping[int, int]:
        self.now += DRAFTED if drafts else PLAIN
        return super().forward(drafts)


def serve(monkeypatch: pytest.MonkeyPatch, guess: str, drafts: int = 3, requests: int = 1) -> tuple[float, Timed]:
    """Answer requests whose drafts are all "right" or all "wrong", and return the seconds that it took."""
    answers = {(5, 6, 7 + n): toy.answer((5, 6, 7 + n), LONG) for n in range(requests)}

    def draft(lookup: PromptLookup, limit: int) -> list[int]:
        prompt = tuple(lookup._tokens[:3])
        after = answers[prompt][len(lookup._tokens) - 3 :][:limit]
        return after if guess == "right" else [token + 1 for token in after]

    monkeypatch.setattr(PromptLookup, "draft", draft)
    engine = Timed(toy.limits(drafts=drafts))
    loop = Loop(engine, clock=lambda: engine.now)
    for n, prompt in enumerate(answers):
        loop.submit(Request(f"{n}", prompt, SamplingParams(max_tokens=LONG, ignore_eos=True)))
    finished = 0
    while finished < requests:
        finished += sum(isinstance(event, Finished) for event in loop.step())
    return engine.now, engine


@pytest.mark.parametrize("requests", [1, 2])
def test_drafts_that_are_always_wrong_cost_at_most_three_percent(
    monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    plain, _ = serve(monkeypatch, "wrong", drafts=0, requests=requests)
    drafted, engine = serve(monkeypatch, "wrong", requests=requests)
    assert engine.drafted > 0
    assert drafted <= plain / 0.97


@pytest.mark.parametrize("requests", [1, 2])
def test_drafts_that_are_always_right_are_fed_in_nearly_every_step(
    monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    plain, _ = serve(monkeypatch, "right", drafts=0, requests=requests)
    drafted, _ = serve(monkeypatch, "right", requests=requests)
    assert drafted <= plain / 2.4  # four tokens in one and a half times the seconds: 2.67


def test_drafts_are_tried_again_after_they_did_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Timed(toy.limits(drafts=3))
    _, engine = serve(monkeypatch, "wrong")
    first = engine.log.count("forward")
    assert 3 * (first // 40) <= engine.drafted <= 3 * (first // 8)
