"""Damaged HTTP requests; `python -m bench.fuzz http` sends more of them."""

import json
from random import Random

import pytest

from bench.fuzz.http import SENT, answer_all, requests


@pytest.mark.parametrize("seed", range(3))
def test_no_damaged_request_gets_a_5xx_or_no_answer(seed: int) -> None:
    answers = answer_all(requests(Random(seed)))
    statuses = {answer[9:12] for answer in answers}
    assert {b"200", b"400"} <= statuses


def test_undamaged_requests_are_served() -> None:
    sent = []
    for path, fields in SENT.items():
        body = json.dumps(fields).encode()
        lines = (f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", "Connection: close")
        sent.append("\r\n".join((*lines, f"Content-Length: {len(body)}", "", "")).encode() + body)
    assert [answer[9:12] for answer in answer_all(sent)] == [b"200"] * len(sent)
