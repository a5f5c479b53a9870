"""A client that disconnects frees its slots, whatever state its request is in."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.server.conftest import Served

LONG = {"prompt": "abc", "max_tokens": 590}


@contextmanager
def sent(served: Served, **body: Any) -> Iterator[socket.socket]:
    """Send a request on a raw connection, which is closed at the end."""
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    )
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(f"{head}\r\n\r\n".encode() + content)
        yield connection


def wait_for_submission(served: Served, count: int = 1) -> None:
    while len(served.engine.submitted) < count:
        served.http.get("/health")


@pytest.mark.parametrize("prompts", [1, 3])
def test_leaving_in_the_middle_of_a_stream_frees_its_slots(slow: Served, prompts: int) -> None:
    with sent(slow, **LONG | {"prompt": ["abc"] * prompts}, stream=True) as connection:
        received = b""
        while received.count(b"data: ") < 5:
            received += connection.recv(4096)
    slow.wait_until_free()
    assert sorted(slow.engine.cancelled) == sorted(request.id for request in slow.engine.submitted)
    assert len(slow.engine.cancelled) == prompts


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_before_anything_came_frees_the_slot(slow: Served, stream: bool) -> None:
    with sent(slow, **LONG | {"prompt": "a" * 512}, stream=stream):
        wait_for_submission(slow)
    slow.wait_until_free()
    assert slow.engine.cancelled == [slow.engine.submitted[0].id]


def test_leaving_the_queue_leaves_the_running_alone(slow: Served) -> None:
    slots = slow.engine.limits.slots
    with sent(slow, **LONG | {"prompt": ["abc"] * slots, "max_tokens": 60}, stream=True) as running:
        wait_for_submission(slow, slots)
        with sent(slow, **LONG, stream=True):
            wait_for_submission(slow, slots + 1)
            assert slow.engine.stats().waiting >= 1
        received = b""
        while b"[DONE]" not in received:
            received += running.recv(65536)
    slow.wait_until_free()
    assert slow.engine.cancelled == [slow.engine.submitted[slots].id]
    assert received.count(b'"finish_reason":"length"') == slots


def test_the_next_request_takes_the_freed_slot(slow: Served) -> None:
    with sent(slow, **LONG | {"prompt": ["abc"] * slow.engine.limits.slots}, stream=True) as connection:
        connection.recv(4096)
    assert slow.post("completions", prompt="xy", max_tokens=3).json()["choices"][0]["text"] == "xyx"
