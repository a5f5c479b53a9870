"""The memory of request bodies, and the time that one may take to arrive."""

import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from ringkv.server.protocol import bodies
from ringkv.server.protocol.bodies import FREE, MIB, VALUE_BYTES, BodyLimits
from ringkv.server.protocol.guard import Access
from ringkv.text.tokenizer import Tokenizer
from tests.server.conftest import Served, serving
from tests.server.echo import channel


@contextmanager
def bounded(tokenizer: Tokenizer, limits: BodyLimits) -> Iterator[Served]:
    with serving(channel(seconds=0.01), tokenizer, None, access=Access(bodies=limits)) as served:
        yield served


def head(length: int | None) -> bytes:
    kind = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{kind}\r\n\r\n".encode()


def connect(served: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), timeout=10)


def padded(size: int, **fields: Any) -> bytes:
    """Return a small request that is padded to `size` bytes."""
    body = json.dumps({"prompt": "ab", "max_tokens": 1, **fields, "user": ""})
    return body.replace('"user": ""', f'"user": "{"x" * (size - len(body))}"').encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_the_default_bounds_follow_from_the_longest_prompt() -> None:
    small, large = (BodyLimits.of(tokens, None, 30) for tokens in (8_192, 1_000_000))
    assert (small.largest, small.in_flight) == (MIB, 128 * MIB)
    assert large.largest == 64_000_000
    assert large.json.values == 2_000_000  # a prompt as ids fits
    for limits in (small, large, BodyLimits.of(512, 10**9, 30)):
        assert limits.in_flight >= limits.largest + VALUE_BYTES * limits.json.values  # the largest body fits


def test_a_declared_length_is_refused_before_the_body_comes(tokenizer: Tokenizer) -> None:
    with bounded(tokenizer, BodyLimits(largest=1000)) as served, connect(served) as connection:
        connection.sendall(head(1001))
        assert status(connection.recv(4096)) == 413


def test_a_chunked_body_is_refused_where_it_becomes_too_long(tokenizer: Tokenizer) -> None:
    with bounded(tokenizer, BodyLimits(largest=1000)) as served, connect(served) as connection:
        connection.sendall(head(None))
        for _ in range(3):
            connection.sendall(b"190\r\n" + b" " * 400 + b"\r\n")
        answer = connection.recv(4096)
        while b"}" not in answer and (more := connection.recv(4096)):
            answer += more
    assert status(answer) == 413
    assert b"more than 1,000 bytes" in answer


def test_a_body_that_does_not_arrive_in_time_is_408(tokenizer: Tokenizer) -> None:
    with bounded(tokenizer, BodyLimits(seconds=0.2)) as served, connect(served) as connection:
        connection.sendall(head(1000) + b"{")
        started = time.monotonic()
        assert status(connection.recv(4096)) == 408
        assert time.monotonic() - started < 5
        assert served.post("completions", prompt="ab", max_tokens=1).status_code == 200


def test_large_bodies_wait_for_room_and_are_then_refused_while_small_ones_pass(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "WAIT", 0.2)
    with bounded(tokenizer, BodyLimits(in_flight=3 * MIB)) as served, connect(served) as holder:
        holder.sendall(head(2 * MIB) + b"{")  # takes its room when it is announced
        large = served.http.post(
            "/v1/completions", content=padded(2 * MIB), headers={"content-type": "application/json"}
        )
        assert (large.status_code, large.headers["retry-after"]) == (503, "5")
        assert large.json()["error"]["code"] == "bodies_full"
        assert served.post("completions", prompt="ab", max_tokens=1).status_code == 200
        holder.close()
        for _ in range(3):  # each gives its room back
            assert _post(served, padded(2 * MIB)) == 200


def test_a_waiting_body_is_served_when_another_has_ended(tokenizer: Tokenizer) -> None:
    with bounded(tokenizer, BodyLimits(in_flight=3 * MIB)) as served, connect(served) as holder:
        holder.sendall(head(2 * MIB))
        with connect(served) as waiting:
            waiting.sendall(head(2 * MIB) + padded(2 * MIB))
            waiting.settimeout(0.2)
            with pytest.raises(TimeoutError):
                waiting.recv(1)
            holder.close()
            waiting.settimeout(10)
            assert status(waiting.recv(4096)) == 200


def test_many_values_count_as_the_memory_that_they_take(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "WAIT", 0.05)
    many = json.dumps({"prompt": "ab", "max_tokens": 1, "x": [0] * 20_000}).encode()
    needed = len(many) + VALUE_BYTES * 20_000 - FREE
    for in_flight, expected in ((needed - 1000, 503), (needed + 1000, 200)):
        with bounded(tokenizer, BodyLimits(in_flight=in_flight)) as served:
            assert _post(served, many) == expected


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"a":' * 100_000, b'{"prompt": "ab", "x": [' + b"1," * 300_000 + b"1]}"]
)
def test_a_body_with_too_much_structure_is_400(served: Served, body: bytes) -> None:
    answer = served.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert "more than" in answer.json()["error"]["message"]


def test_too_many_biases_are_refused(served: Served) -> None:
    answer = served.post("completions", prompt="a", logit_bias={str(n): 1 for n in range(1025)})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logit_bias")


def test_a_client_that_leaves_while_it_sends_gives_its_room_back(tokenizer: Tokenizer) -> None:
    with bounded(tokenizer, BodyLimits(in_flight=3 * MIB)) as served:
        for _ in range(4):
            with connect(served) as connection:
                connection.sendall(head(3 * MIB) + b" " * MIB)
        assert _post(served, padded(3 * MIB)) == 200


def _post(served: Served, content: bytes) -> int:
    headers = {"content-type": "application/json"}
    return served.http.post("/v1/completions", content=content, headers=headers).status_code


def _many_keys(count: int) -> bytes:
    return b"{" + b",".join(b'"%d":1' % number for number in range(count)) + b"}"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", b'{"prompt": "a", "x": ' + _many_keys(1_000_000) + b"}"),
        ("/v1/completions", b'{"prompt": "a", "logit_bias": ' + _many_keys(1_000_000) + b"}"),
        ("/detokenize", b'{"tokens": [' + b"97," * 2_000_000 + b"97]}"),
    ],
    ids=["keys", "biases", "ids"],
)
def test_others_are_answered_while_a_large_body_is_refused(served: Served, path: str, body: bytes) -> None:
    """Parsing these would hold the event loop for one to four seconds of this process's processor time."""
    latencies, probed, ended = list[float](), threading.Event(), threading.Event()

    def probe() -> None:
        with httpx.Client(base_url=served.root) as client:
            while not ended.is_set():
                started = time.process_time()
                assert client.get("/health").status_code == 200
                latencies.append(time.process_time() - started)
                probed.set()

    probing = threading.Thread(target=probe)
    probing.start()
    assert probed.wait(30)
    try:
        answer = served.http.post(path, content=body, headers={"content-type": "application/json"})
    finally:
        ended.set()
        probing.join()
    assert answer.status_code == 400
    assert max(latencies) < 0.5


def test_a_compressed_body_is_415(served: Served) -> None:
    content = gzip.compress(b'{"prompt": "a"}')
    got = served.http.post("/v1/completions", content=content, headers={"content-encoding": "gzip"})
    assert (got.status_code, got.json()["error"]["code"]) == (415, "encoded_body")
