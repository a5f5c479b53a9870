from dataclasses import replace

import pytest

from ringkv.base.engine import RankBytes
from ringkv.base.events import KVUsage, PageUsage, Usage
from ringkv.server.run.metrics import Metrics
from tests.server.conftest import NAMES, Served


def test_tokens_and_times_are_counted(slow: Served) -> None:
    slow.post("completions", prompt="hello", max_tokens=7)
    assert slow.metric("ringkv_prompt_tokens_total") == 5
    assert slow.metric("ringkv_generated_tokens_total") == 7
    assert slow.metric("ringkv_time_to_first_token_seconds_count") == 1
    assert slow.metric("ringkv_inter_token_seconds_count") == 6
    # A token takes a sampling step and a forward step of 10 ms each.
    assert slow.metric("ringkv_inter_token_seconds_sum") >= 6 * 2 * 0.01
    assert slow.metric('ringkv_inter_token_seconds_bucket{le="0.01"}') == 0


def test_kept_and_evicted_tokens_and_wraps_are_counted(fresh: Served) -> None:
    body = {"prompt": "x" * 30, "max_tokens": 40, "kv_budget": 20}
    usage = [fresh.post("completions", **body).json()["usage"]["kv"] for _ in range(2)]
    for name in ("kept", "evicted"):
        assert fresh.metric(f"ringkv_kv_{name}_tokens_total") == sum(one[name] for one in usage) > 0
    assert fresh.metric("ringkv_kv_ring_wraps_total") == sum(one["ring_wraps"] for one in usage) > 0


def test_pages_of_an_answer_are_counted_by_name() -> None:
    pages = PageUsage(held=60, resident=50, step=20, read=7, skipped=8, recalled=1)
    metrics = Metrics().of("model")
    metrics.finished(Usage(3, 4, KVUsage("arkvale", 1, 2, 3, 4, 5, pages)))
    assert [metrics.count(f"kv_pages_{name}") for name in ("read", "skipped", "recalled")] == [7, 8, 1]


def test_cached_tokens_count_once_for_all_answers_to_a_prompt(fresh: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = fresh.engine.engine.begin
    monkeypatch.setattr(
        fresh.engine.engine, "begin", lambda request, lane, entries: begin(replace(request, id="cached"), lane)
    )
    usage = fresh.post("completions", prompt=["abcdef", "ghijkl"], n=3, max_tokens=2).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 6  # the first three of each prompt
    assert fresh.metric("ringkv_cached_tokens_total") == 6
    assert fresh.metric("ringkv_kv_kept_tokens_total") == 6 * 6


def test_answers_are_counted_by_endpoint_and_status(fresh: Served) -> None:
    fresh.post("completions", prompt="a", max_tokens=1)
    fresh.post("completions", prompt="a", max_tokens=0)
    fresh.http.get("/some/scanner")
    assert fresh.metric('ringkv_requests_total{endpoint="/v1/completions",status="200"}') == 1
    assert fresh.metric('ringkv_requests_total{endpoint="/v1/completions",status="400"}') == 1
    assert fresh.metric('ringkv_requests_total{endpoint="other",status="404"}') == 1


def test_each_ranks_memory_is_a_gauge_if_there_are_several(fresh: Served) -> None:
    assert "ringkv_kv_rank_bytes{" not in fresh.http.get("/metrics").text
    fresh.engine.limits = replace(fresh.engine.limits, rank_bytes=(RankBytes(100, 10), RankBytes(300, 30)))
    text = fresh.http.get("/metrics").text
    for rank, held in ((0, 100), (1, 300)):
        assert f'ringkv_kv_rank_bytes{{model="{NAMES[0]}",rank="{rank}"}} {held}.0\n' in text


def test_gauges_show_the_engines_state(slow: Served) -> None:
    limits = slow.engine.limits
    assert slow.metric("ringkv_slots") == slow.metric("ringkv_slots_free") == limits.slots
    assert slow.metric("ringkv_kv_held_bytes") == limits.held_bytes
    assert slow.metric("ringkv_kv_slots_bytes") == limits.slots * limits.slot_bytes
    assert slow.metric("ringkv_requests_running") == slow.metric("ringkv_requests_waiting") == 0
    assert slow.metric("ringkv_engine_up") == 1
    body = {"prompt": ["ab"] * 6, "max_tokens": 90, "stream": True}
    with slow.http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()  # kept in a variable, or the client would close the connection
        next(lines)
        assert slow.metric("ringkv_slots_free") < limits.slots
        assert slow.metric("ringkv_requests_waiting") >= 6 - limits.slots
    slow.wait_until_free()


def test_a_request_id_is_echoed_or_made(served: Served) -> None:
    assert served.http.get("/health", headers={"x-request-id": "mine-7"}).headers["x-request-id"] == "mine-7"
    ids = {served.http.get("/health").headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2
