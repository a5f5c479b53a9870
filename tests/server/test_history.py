"""/ringkv/history: what the server did in each interval."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from ringkv.base.histogram import Histogram
from ringkv.base.messages import EngineMetrics
from ringkv.server import history
from ringkv.server.app import make_app
from ringkv.server.history import COUNTS, POINTS, Totals, between
from ringkv.server.metrics import Metrics
from ringkv.server.serving import LoadedModel
from ringkv.text.tokenizer import Tokenizer
from tests.server.conftest import NAMES, Served
from tests.server.echo import channel

BOUNDS = (0.1, 0.5, 1.0)
EMPTY = Totals(**dict.fromkeys(COUNTS, 0), **dict.fromkeys(("ttft", "tpot", "step"), Histogram.of(BOUNDS)))


def observed(*values: float) -> Histogram:
    found = Histogram.of(BOUNDS)
    for value in values:
        found = found.plus(value)
    return found


def test_counts_are_those_of_the_interval() -> None:
    earlier = replace(EMPTY, output_tokens=10, requests=3)
    later = replace(EMPTY, output_tokens=25, requests=3, prompt_tokens=7)
    found = between(earlier, later)
    assert (found["output_tokens"], found["requests"], found["prompt_tokens"], found["errors"]) == (15, 0, 7, 0)


def test_a_count_that_begins_again_counts_from_0() -> None:
    earlier = replace(EMPTY, prompt_tokens=100, step=observed(0.2, 0.2, 0.7))
    later = replace(EMPTY, prompt_tokens=30, step=observed(0.7))
    found = between(earlier, later)
    assert found["prompt_tokens"] == 30
    assert found["step"]["p50"] == pytest.approx(0.75)  # half way between 0.5 and 1


def test_percentiles_are_of_the_interval_and_null_without_a_measurement() -> None:
    earlier = replace(EMPTY, ttft=observed(0.9, 0.9, 0.9))
    later = replace(EMPTY, ttft=observed(0.9, 0.9, 0.9, 0.3, 0.3))
    found = between(earlier, later)
    assert found["ttft"] == {"p50": pytest.approx(0.3), "p95": pytest.approx(0.48), "p99": pytest.approx(0.496)}
    assert found["tpot"] == {"p50": None, "p95": None, "p99": None}
    assert found["step"] == {"p50": None, "p95": None}


def app_and_client(tokenizer: Tokenizer) -> tuple[Any, httpx.AsyncClient]:
    app = make_app([LoadedModel(channel(), tokenizer, None, NAMES)])
    return app, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


def test_points_are_taken_from_the_applications_start_to_its_end(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "INTERVAL", 0.05)

    async def main() -> list[dict[str, Any]]:
        app, client = app_and_client(tokenizer)
        async with client, app.router.lifespan_context(app):
            body = {"prompt": "ab" * 50, "max_tokens": 12, "kv_budget": 32}
            for _ in range(2):
                assert (await client.post("/v1/completions", json=body)).status_code == 200
            assert (await client.post("/v1/completions", json={"prompt": ""})).status_code == 400
            await asyncio.sleep(0.3)
            found = (await client.get("/ringkv/history")).json()
            assert found["now"] >= found["points"][-1]["t"]
        async with client_of(app) as client:
            after = (await client.get("/ringkv/history")).json()["points"]
            await asyncio.sleep(0.2)
            assert (await client.get("/ringkv/history", params={"model": NAMES[1]})).json()["points"] == after
        return list(found["points"])

    def client_of(app: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")

    points = asyncio.run(main())
    assert [point["t"] for point in points] == sorted(point["t"] for point in points)
    sums = {name: sum(point[name] for point in points) for name in COUNTS}
    # The second prompt is still in its lane. 100 tokens and 11 of the 12 sampled ones had an entry, and 32 are left.
    want = {"prompt_tokens": 100, "output_tokens": 24, "requests": 3, "evicted": 2 * (100 + 11 - 32)}
    assert sums == want | {"errors": 0, "rejected": 0, "cancelled": 0}
    assert (points[-1]["running"], points[-1]["waiting"], points[-1]["free_slots"]) == (0, 0, 4)
    assert any(point["ttft"]["p50"] for point in points)
    assert points[-1]["ttft"]["p50"] is None


def test_without_a_lifespan_it_answers_with_what_there_is(served: Served) -> None:
    found = served.http.get("/ringkv/history").json()
    assert (found["interval"], found["points"]) == (5, [])
    assert found["now"] > 0
    got = served.http.get("/ringkv/history", params={"model": "nobody"})
    assert (got.status_code, got.json()["error"]["code"]) == (404, "model_not_found")


def test_an_hour_is_kept() -> None:
    stats = SimpleNamespace(running=0, waiting=0, free_slots=1)
    engine = SimpleNamespace(stats=lambda: stats, metrics=EngineMetrics)
    serving = SimpleNamespace(engine=engine, metrics=Metrics().of("toy"), names=("toy",))
    times = iter(range(10_000))
    found = history.History(serving, lambda: float(next(times)))  # type: ignore[arg-type]
    for _ in range(POINTS + 3):
        found.take()
    assert [point["t"] for point in found.points()] == list(range(3, POINTS + 3))


def test_errors_are_what_the_server_failed_to_answer_and_did_not_refuse() -> None:
    metrics = Metrics()
    for endpoint, status in (
        ("/v1/completions", 200),
        ("/v1/chat/completions", 400),
        ("/v1/responses", 500),
        ("/v1/completions", 503),  # refused
        ("/v1/completions", 503),  # its engine ended
        ("/v1/completions", 429),  # refused
        ("/ready", 503),
        ("other", 500),
    ):
        metrics.answered(endpoint, status)
    assert (metrics.requests, metrics.errors, metrics.rejections) == (6, 3, 0)
    metrics.rejected("queue_requests")
    metrics.rejected("rate_limit_exceeded")
    assert (metrics.requests, metrics.errors, metrics.rejections) == (6, 2, 2)


def test_a_models_counts_and_histograms_are_read_as_they_were_written() -> None:
    metrics = Metrics()
    model, other = metrics.of("a"), metrics.of("b")
    other.first_token(0.3)
    other.cancelled(5)
    for seconds in (0.005, 0.3, 0.3, 60, 1000):
        model.first_token(seconds)
    model.cancelled(2)
    found = model.histogram("time_to_first_token_seconds")
    assert (model.count("requests_cancelled"), found.count) == (2, 5)
    assert dict(zip((*found.bounds, "above"), found.counts, strict=True)) == {
        **dict.fromkeys(found.bounds, 0),
        0.01: 1,
        0.5: 2,
        100: 1,
        "above": 1,
    }
