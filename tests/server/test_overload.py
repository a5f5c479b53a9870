"""The queue's bounds, deadlines and counters through HTTP, with an engine that takes 10 ms per step."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from ringkv.server.options import LoadOptions
from ringkv.text.tokenizer import Tokenizer
from tests.server.conftest import Served, serving
from tests.server.echo import channel

ENDLESS = {"prompt": "ab", "max_tokens": 500, "stream": True}


@contextmanager
def loaded(tokenizer: Tokenizer, load: LoadOptions, streams: int) -> Iterator[Served]:
    """A server of 4 slots that runs this many endless streams."""
    with serving(channel(seconds=0.01), tokenizer, None, load=load) as served, ExitStack() as stack:
        for _ in range(streams):
            lines = stack.enter_context(served.http.stream("POST", "/v1/completions", json=ENDLESS)).iter_lines()
            next(lines)
            stack.callback(lambda lines=lines: lines)  # kept, or the client would close the connection
        yield served


def error(got: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = got.json()["error"]
    assert list(found) == ["message", "type", "param", "code"]
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_answers_503_and_says_when_to_retry(tokenizer: Tokenizer, stream: bool) -> None:
    with loaded(tokenizer, LoadOptions(max_queue=0), streams=4) as served:
        got = served.post("completions", prompt="a", stream=stream)
        assert (got.status_code, error(got)["code"]) == (503, "queue_full")
        assert "--max-queue" in error(got)["message"]
        assert int(got.headers["retry-after"]) >= 1
        assert served.metric('ringkv_requests_rejected_total{reason="queue_requests"}') == 1
        assert served.metric('ringkv_requests_total{endpoint="/v1/completions",status="503"}') == 1
        assert served.metric("ringkv_prompt_tokens_total") == 4 * 2
        assert len(served.engine.submitted) == 4


def test_the_queue_is_bounded_exactly_under_a_burst(tokenizer: Tokenizer) -> None:
    with loaded(tokenizer, LoadOptions(max_queue=3), streams=4) as served:
        with ThreadPoolExecutor(20) as clients:
            sent = [clients.submit(served.post, "completions", prompt="a", timeout=2) for _ in range(20)]
            while (queued := served.metrics("ringkv_queue_requests", "ringkv_queue_tokens"))[0] < 3:
                time.sleep(0.01)
            assert queued == [3, 3]
            statuses = [future.result() for future in sent]
        codes = sorted(error(got)["code"] for got in statuses)
        assert codes == ["deadline_exceeded"] * 3 + ["queue_full"] * 17
        assert served.metric("ringkv_queue_requests") == served.metric("ringkv_queue_tokens") == 0
        assert served.metric('ringkv_requests_rejected_total{reason="deadline"}') == 3


def test_more_prompt_tokens_than_may_wait_are_refused(tokenizer: Tokenizer) -> None:
    with loaded(tokenizer, LoadOptions(max_queue_tokens=10), streams=4) as served, ThreadPoolExecutor(1) as client:
        waiting = client.submit(served.post, "completions", prompt="abcdefgh", timeout=0.5)
        while served.metric("ringkv_queue_tokens") < 8:
            time.sleep(0.01)
        got = served.post("completions", prompt="abc")
        assert (got.status_code, error(got)["code"]) == (503, "queue_full")
        assert "--max-queue-tokens" in error(got)["message"]
        assert error(waiting.result())["code"] == "deadline_exceeded"
        assert served.metric('ringkv_requests_rejected_total{reason="queue_tokens"}') == 1


def test_a_request_that_waits_past_its_deadline_gets_503_and_when_to_retry(tokenizer: Tokenizer) -> None:
    with loaded(tokenizer, LoadOptions(request_timeout=60), streams=4) as served:
        started = time.monotonic()
        got = served.post("completions", prompt="a", timeout=0.2)
        assert 0.2 <= time.monotonic() - started < 60
        assert (got.status_code, error(got)["code"]) == (503, "deadline_exceeded")
        assert int(got.headers["retry-after"]) >= 1
        assert served.metric("ringkv_requests_waiting") == 0


@pytest.mark.parametrize(("option", "field"), [(1.0, None), (None, 1.0), (30, 1.0), (1.0, 30)])
def test_a_running_request_ends_at_its_deadline_with_what_it_has(
    tokenizer: Tokenizer, option: float | None, field: float | None
) -> None:
    with loaded(tokenizer, LoadOptions(request_timeout=option), streams=0) as served:
        got = served.post("completions", prompt="ab", max_tokens=500, timeout=field).json()
        (choice,) = got["choices"]
        assert choice["finish_reason"] == "abort"
        assert choice["text"].startswith("ab")
        assert 2 <= got["usage"]["completion_tokens"] < 500
        served.wait_until_free()


def test_a_disconnected_client_frees_its_place_in_the_queue_and_is_counted(tokenizer: Tokenizer) -> None:
    with loaded(tokenizer, LoadOptions(max_queue=1), streams=4) as served:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{served.root}/v1/completions", json={"prompt": "a"}, timeout=0.2)
        while served.metric("ringkv_queue_requests"):
            time.sleep(0.01)
        assert served.metric("ringkv_requests_cancelled_total") == 1
        assert error(served.post("completions", prompt="a", timeout=0.1))["code"] == "deadline_exceeded"


def test_the_engines_times_and_gauges_are_those_of_known_requests(fresh: Served) -> None:
    limits = fresh.engine.limits
    fresh.post("completions", prompt="x" * 20, max_tokens=5)
    fresh.post("completions", prompt="y", n=3, max_tokens=2)
    fresh.post("completions", prompt=json.loads("[0]"), max_tokens=5)
    metrics = fresh.engine.metrics()
    for name, number in (("queue", 5), ("prefill", 3), ("compress", 5), ("decode_step", metrics.step.count)):
        assert fresh.metric(f"ringkv_{name}_seconds_count") == number > 0
        assert fresh.metric(f'ringkv_{name}_seconds_bucket{{le="+Inf"}}') == number
    assert fresh.metric("ringkv_decode_step_seconds_sum") == pytest.approx(metrics.step.total)
    assert fresh.metric("ringkv_time_per_output_token_seconds_count") == 4  # the failed one is not finished
    assert fresh.metric("ringkv_requests_not_finite_total") == 1
    assert fresh.metric("ringkv_staging_lanes") == fresh.metric("ringkv_staging_lanes_free") == limits.lanes
    assert fresh.metric("ringkv_queue_requests_limit") == 64
    assert fresh.metric("ringkv_queue_tokens_limit") == 16 * limits.longest_prompt
    assert fresh.metric("ringkv_asyncio_tasks") >= 1


def test_the_time_per_output_token_is_that_after_the_first(slow: Served) -> None:
    slow.post("completions", prompt="hello", max_tokens=7)
    between = slow.metric("ringkv_inter_token_seconds_sum")
    assert slow.metric("ringkv_time_per_output_token_seconds_sum") == pytest.approx(between / 6)
