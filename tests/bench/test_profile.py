from dataclasses import dataclass
from typing import Any

import pytest

from ringkv.bench.profile import COMPRESS, DECODE, PREFILL, Operator, phases


@dataclass
class Event:
    """A profiler's event; times are microseconds."""

    name: str
    cpu_parent: Any
    self_cpu_time_total: float
    self_device_time_total: float = 0.0


def test_each_operator_is_counted_in_the_phase_that_it_ran_in() -> None:
    prefill, decode = Event(PREFILL, None, 10.0), Event(DECODE, None, 40.0)
    linear = Event("linear", prefill, 5.0)
    stray = Event("mm", None, 1000.0)
    events = [prefill, decode, linear, Event("mm", linear, 65.0), Event("mm", decode, 60.0), stray]
    found = {phase.name: phase for phase in phases(events, on_device=False)}
    assert found[PREFILL].seconds == pytest.approx(80e-6)
    assert found[PREFILL].operators == (
        Operator("mm", 1, pytest.approx(65e-6), pytest.approx(65 / 80)),
        Operator(PREFILL, 1, pytest.approx(10e-6), pytest.approx(10 / 80)),
        Operator("linear", 1, pytest.approx(5e-6), pytest.approx(5 / 80)),
    )
    assert [one.name for one in found[DECODE].operators] == ["mm", DECODE]
    assert found[COMPRESS].operators == ()


def test_on_a_device_the_device_time_counts() -> None:
    decode = Event(DECODE, None, 40.0)
    found = phases([decode, Event("mm", decode, 1.0, self_device_time_total=7.0)], on_device=True)[2]
    assert (found.seconds, found.operators[0].name) == (pytest.approx(7e-6), "mm")
