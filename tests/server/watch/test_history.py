"""/ringkv/history: what the server did in each interval."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from ringkv.base.histogram import Histogram
from ringkv.base.messages import EngineMetrics
from ringkv.server.app import make_app
from ringkv.server.run.metrics import Metrics
from ringkv.server.run.serving import LoadedModel
from ringkv.server.watch import history
from ringkv.server.watch.history import COUNTS, POINTS, Totals, between
from ringkv.text.tokenizer import Tokenizer
from tests.server.conftest import NAMES, Served
from tests.server.echo import channel

BOUNDS = (0.1, 0.5, 1.0)
EMPTY = Totals(**dict.fromkeys(COUNTS, 0), step=Histogram.of(BOUNDS))


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
    stats = SimpleNamespace(running=0, waiting=0, free_slots=1)
    model = Metrics().of("toy")
    engine = SimpleNamespace(stats=lambda: stats, metrics=EngineMetrics)
    serving = SimpleNamespace(engine=engine, metrics=model, names=("toy",))
    found = history.History(serving, lambda: 0.0)  # type: ignore[arg-type]
    for values in ([11.8], [], [0.1 * number for number in range(100, 0, -1)]):
        for value in values:
            model.observe("time_to_first_token_seconds", value)
        found.take()
    one, none, many = (point["ttft"] for point in found.points())
    assert one == dict.fromkeys(("p50", "p95", "p99"), 11.8)  # one observation is every percentile
    assert none == dict.fromkeys(("p50", "p95", "p99"))
    assert many == {"p50": pytest.approx(5.0), "p95": pytest.approx(9.5), "p99": pytest.approx(9.9)}
    assert [point["tpot"] for point in found.points()] == [none] * 3


def test_a_percentile_is_an_observation_as_numpy_finds_it() -> None:
    for count in (1, 2, 3, 10, 19, 20, 21, 100, 137):
        values = list(np.random.default_rng(count).random(count))
        for share in (0.5, 0.95, 0.99):
            want = np.quantile(values, share, method="inverted_cdf")
            assert history.quantiles(values, [share]) == {f"p{round(100 * share)}": want}, (count, share)


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
    assert sums == want | {"invalid": 1, "errors": 0, "rejected": 0, "cancelled": 0}
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
        ("/v1/completions", 499),  # its client disconnected
        ("/ready", 503),
        ("other", 500),
    ):
        metrics.answered(endpoint, status)
    assert metrics.totals() == {"requests": 7, "invalid": 2, "errors": 3, "rejected": 0}
    metrics.rejected("queue_requests")
    metrics.rejected("rate_limit_exceeded")
    assert metrics.totals() == {"requests": 7, "invalid": 1, "errors": 2, "rejected": 2}


def test_observations_of_a_model_are_taken_once() -> None:
    metrics = Metrics()
    model, other = metrics.of("a"), metrics.of("b")
    other.observe("time_to_first_token_seconds", 0.3)
    other.add("requests_cancelled", 5)
    for seconds in (0.005, 0.3, 1000):
        model.observe("time_to_first_token_seconds", seconds)
    model.add("requests_cancelled", 2)
    assert model.count("requests_cancelled") == 2
    assert model.taken("time_to_first_token_seconds") == [0.005, 0.3, 1000]
    assert model.taken("time_to_first_token_seconds") == model.taken("time_per_output_token_seconds") == []
    assert 'ringkv_time_to_first_token_seconds_count{model="a"} 3.0' in metrics.render().decode()
