"""The time of decode steps."""

import pytest

from bench.steps import step_seconds
from ringkv.engine.engine import LocalEngine


class Clock:
    """Stands in for an engine and for its clock: a forward pass takes a second more than the last, a sample 0.5."""

    def __init__(self) -> None:
        self.now, self.passes = 0.0, 0

    def forward(self) -> None:
        self.passes += 1
        self.now += self.passes

    def sample(self) -> "Clock":
        return self

    def read(self) -> None:
        self.now += 0.5


def test_a_step_is_a_forward_pass_and_a_sample_and_warm_ones_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("bench.steps.time.perf_counter", lambda: clock.now)
    engine: LocalEngine = clock  # type: ignore[assignment]
    assert step_seconds(engine, 5, 2) == [3.5, 4.5, 5.5]
