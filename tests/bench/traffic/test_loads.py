import json
from pathlib import Path

import pytest

from bench.traffic import traces
from bench.traffic.engines import Demand
from bench.traffic.loads import arriving, in_turn

NEED = Demand("m", 8192, 1, 1, 1, 8192, 1024, 1)


def test_short_prompts_and_answers_have_lengths_from_the_whole_range_and_are_the_same_every_time() -> None:
    load = in_turn(16, 20)
    assert load == in_turn(16, 20)
    assert len(load.asks) == 320
    assert 40 <= min(one.prompt for one in load.asks) < 60
    assert 380 < max(one.prompt for one in load.asks) <= 400
    assert 32 <= min(one.output for one in load.asks) < 45
    assert 244 < max(one.output for one in load.asks) <= 256


def test_requests_that_do_not_fit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"timestamp": 0, "input_length": size, "output_length": 9, "hash_ids": [1]} for size in (100, 9000)]
    path = tmp_path / traces.FILES["mooncake"]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    monkeypatch.setattr(traces.arrivals, "__defaults__", (1, tmp_path))
    load = arriving("mooncake", 1.0, 2.0, NEED)
    assert ([one.prompt for one in load.asks], load.dropped, load.part) == ([100], 1, 512)
    shrunk = arriving("mooncake", 1.0, 2.0, NEED, shrink=4)
    assert ([one.prompt for one in shrunk.asks], shrunk.dropped, shrunk.part) == ([25, 2250], 0, 128)
