import sys
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from bench.peers.workers.serve import _reply
from bench.traffic import client


class FakeSample(NamedTuple):
    prompt: str
    prompt_len: int
    expected_output_len: int
    timestamp: float
    request_id: str


class FakeTask:
    GENERATION = "generation"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []

    async def benchmark(**fields: Any) -> dict[str, Any]:
        made.append(fields)
        asked = fields["input_requests"]
        lists = {key: [0.1 for _ in asked] for key in ("start_times", "ttfts", "latencies")}
        return {
            **lists,
            "itls": [[0.1]] * len(asked),
            "errors": [""],
            "duration": 1.0,
            "output_lens": [1, 7][: len(asked)],
        }

    modules = {
        name: ModuleType(name)
        for name in ("vllm", "vllm.benchmarks", "vllm.benchmarks.serve", "vllm.benchmarks.datasets")
    }
    modules["vllm.benchmarks.serve"].__dict__.update(benchmark=benchmark, TaskType=FakeTask)
    modules["vllm.benchmarks.datasets"].__dict__.update(SampleRequest=FakeSample)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


ASKS = [[0.0, "one", 3, 7], [1.5, "two", 4, 7]]


def test_requests_go_out_at_their_times_unless_clients_wait(calls: list[dict[str, Any]]) -> None:
    _reply(client, {"do": "send", "url": "http://h", "model": "m", "clients": None, "asks": ASKS})
    _reply(client, {"do": "send", "url": "http://h", "model": "m", "clients": 2, "asks": ASKS})
    assert [(call["self_timed"], call["max_concurrency"]) for call in calls] == [(True, None), (False, 2)]
    assert [one.timestamp for one in calls[0]["input_requests"]] == [0.0, 1.5]
    assert calls[0]["api_url"] == "http://h/v1/completions"


def test_answers_have_the_requested_length_and_are_sampled(calls: list[dict[str, Any]]) -> None:
    _reply(client, {"do": "send", "url": "http://h", "model": "m", "clients": 2, "asks": ASKS})
    (call,) = calls
    assert call["ignore_eos"]
    assert [one.expected_output_len for one in call["input_requests"]] == [7, 7]
    assert call["extra_body"] == {"temperature": 0.7, "top_p": 0.95}


def test_a_count_that_the_benchmark_did_not_find_is_null(calls: list[dict[str, Any]]) -> None:
    found = _reply(client, {"do": "send", "url": "http://h", "model": "m", "clients": 2, "asks": ASKS})
    assert found["outputs"] == [None, 7]


def test_a_failure_is_a_reply() -> None:
    assert _reply(client, {"do": "send", "nothing": 1})["error"].startswith("TypeError")
