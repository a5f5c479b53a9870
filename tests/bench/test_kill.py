"""What the benchmark of kills counts as right and as wrong."""

import json

import pytest

from bench.kill import Ended, Kill, drain_figure, ending, figure, running_at, wrong, wrong_drain

DONE = b"data: [DONE]\n"


def chunk(reason: str | None) -> bytes:
    return b"data: " + json.dumps({"choices": [{"finish_reason": reason}]}).encode() + b"\n"


FAILURE = b'data: {"error":{"code":"engine_died"}}\n'


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        ([chunk(None), chunk("length"), DONE], "finished"),
        ([chunk(None), FAILURE, DONE], "error"),
        ([chunk(None), chunk(None)], "cut"),
        ([chunk(None), chunk("abort"), DONE], "cut"),
        ([chunk(None), FAILURE], "cut"),
        ([DONE], "cut"),
        ([], "cut"),
    ],
)
def test_a_stream_counts_as_its_last_two_events_say(events: list[bytes], outcome: str) -> None:
    assert ending(events) == outcome


def test_a_kill_meets_the_requests_that_were_running() -> None:
    requests = [Ended(0, 5, "finished"), Ended(4, 10.2, "error"), Ended(9, 10.1, "refused"), Ended(11, 12, "finished")]
    kills = [Kill(10.0, 2.0, 3.0)]
    affected = [running_at(kill.time, requests) for kill in kills]
    assert affected == [[requests[1]]]
    assert list(wrong(kills, affected, requests)) == []
    found = figure(kills, affected, requests, files=0)
    assert (found["failed_requests"], found["error_s"], found["back_s"]) == (1, pytest.approx(0.2), 3.0)


def test_a_cut_or_hung_request_a_slow_return_and_a_kill_without_load_are_wrong() -> None:
    requests = [Ended(0, 11, "cut"), Ended(0, 41, "hung")]
    kills = [Kill(10.0, 2.0, 16.0)]
    failures = list(wrong(kills, [[]], requests))
    assert [failure.split(":")[0] for failure in failures] == [
        "1 requests",
        "1 requests",
        "kill 1",
        "kill 1 met no request; it shows nothing",
    ]


def test_a_drain_is_right_if_what_it_met_has_finished() -> None:
    requests = [Ended(0, 5, "finished"), Ended(4, 12, "finished"), Ended(9, 10.1, "refused"), Ended(9, 30, "finished")]
    met = running_at(10.0, requests)
    assert (drain_figure(met), list(wrong_drain(met))) == ({"drained_requests": 2, "lost_requests": 0}, [])
    cut = [*met, Ended(8, 40, "cut")]
    assert list(wrong_drain(cut)) == ["SIGTERM: 1 accepted requests did not finish"]
    assert list(wrong_drain([])) == ["SIGTERM met no request; it shows nothing"]
