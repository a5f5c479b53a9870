import json
from pathlib import Path

import pytest

from bench.traffic import traces
from bench.traffic.loads import Limits, arriving, in_turn


def test_short_prompts_and_answers_have_lengths_from_the_whole_range_and_are_the_same_every_time() -> None:
    load = in_turn(16, 20)
    assert load == in_turn(16, 20)
    assert len(load.asks) == 320
    assert 40 <= min(one.prompt for one in load.asks) < 60
    assert 380 < max(one.prompt for one in load.asks) <= 400
    assert 32 <= min(one.output for one in load.asks) < 45
    assert 244 < max(one.output for one in load.asks) <= 256


def test_short_requests_arrive_at_the_rate() -> None:
    load = arriving("short", 4.0, 100.0, Limits(1024, 400, 256))
    assert len(load.asks) == pytest.approx(400, rel=0.15)
    assert 0 < load.asks[0].at < load.asks[-1].at < 100
    assert load.name == "short, 4 requests/s"


def test_requests_that_do_not_fit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"timestamp": 0, "input_length": size, "output_length": 9, "hash_ids": [1]} for size in (100, 9000)]
    path = tmp_path / traces.FILES["mooncake"]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    monkeypatch.setattr(traces.arrivals, "__defaults__", (1, tmp_path))
    load = arriving("mooncake", 1.0, 2.0, Limits(8192, 8192, 1024))
    assert ([one.prompt for one in load.asks], load.dropped, load.part) == ([100], 1, 512)
    shrunk = arriving("mooncake", 1.0, 2.0, Limits(8192, 8192, 1024), shrink=4)
    assert ([one.prompt for one in shrunk.asks], shrunk.dropped, shrunk.part) == ([25, 2250], 0, 128)
