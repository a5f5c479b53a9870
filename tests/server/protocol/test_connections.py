"""Connections: slow senders, slow readers, too many of them, and what is not HTTP."""

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from ringkv.server.protocol import connections
from ringkv.server.protocol.connections import ConnectionLimits
from ringkv.text.tokenizer import Tokenizer
from tests.server.conftest import Served, serving
from tests.server.echo import channel

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


@contextmanager
def bounded(tokenizer: Tokenizer, limits: ConnectionLimits, seconds: float = 0.0) -> Iterator[Served]:
    with serving(channel(seconds=seconds), tokenizer, None, connections=limits) as served:
        yield served


def connect(served: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), timeout=10)


def answer(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Return status and JSON body of an answer after which the server closes the connection."""
    received = b""
    while part := connection.recv(65536):
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), json.loads(body)


def kept_answer(connection: socket.socket) -> bytes:
    """Return the status line and the body of an answer on a connection that stays open."""
    with connection.makefile("rb") as lines:
        status, length = lines.readline(), 0
        while (header := lines.readline()) != b"\r\n":
            name, _, value = header.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return status + lines.read(length)


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(65536) == b""
    except ConnectionResetError:
        return True


def dribbled(connection: socket.socket, byte: bytes) -> float:
    """Send a byte now and then; return the seconds until the server has closed the connection."""
    started = time.monotonic()
    with suppress(OSError):
        while time.monotonic() - started < 5:
            connection.sendall(byte)
            time.sleep(0.02)
    return time.monotonic() - started


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: x\r\n"])
def test_headers_that_do_not_arrive_in_time_are_408_in_openais_shape(tokenizer: Tokenizer, sent: bytes) -> None:
    with bounded(tokenizer, ConnectionLimits(seconds=0.2)) as served, connect(served) as connection:
        connection.sendall(sent)
        status, body = answer(connection)
    assert (status, body["error"]["code"]) == (408, "too_slow")


def test_a_sender_that_dribbles_its_headers_gets_no_more_time(tokenizer: Tokenizer) -> None:
    with bounded(tokenizer, ConnectionLimits(seconds=0.3)) as served, connect(served) as connection:
        connection.sendall(GET)  # a served request before it
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert dribbled(connection, b"G") < 2


def test_a_body_that_nobody_wants_cannot_be_dribbled_for_ever(tokenizer: Tokenizer) -> None:
    with bounded(tokenizer, ConnectionLimits(seconds=0.3)) as served, connect(served) as connection:
        connection.sendall(b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000000\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")
        assert dribbled(connection, b" ") < 2


def test_a_kept_connection_may_be_idle_between_requests(tokenizer: Tokenizer) -> None:
    with bounded(tokenizer, ConnectionLimits(seconds=0.2)) as served, connect(served) as connection:
        for _ in range(2):
            connection.sendall(GET)
            assert kept_answer(connection) == b'HTTP/1.1 200 OK\r\n{"status":"ok"}'
            time.sleep(0.4)


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"GET /" + b"a" * 70_000, 414, "url_too_long"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 70_000, 431, "headers_too_large"),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400, "bad_http"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "bad_http"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "bad_http"),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "bad_http"),
    ],
)
def test_what_is_not_http_gets_an_error_in_openais_shape(served: Served, sent: bytes, status: int, code: str) -> None:
    with connect(served) as connection:
        connection.sendall(sent)
        got, body = answer(connection)
    assert (got, body["error"]["code"]) == (status, code)
    assert list(body["error"]) == ["message", "type", "param", "code"]


@pytest.mark.parametrize(
    ("target", "headers", "status"),
    [("/" + "a" * 8200, {}, 414), ("/?" + "a" * 8200, {}, 414), ("/", {f"x{n}": "" for n in range(120)}, 431)],
)
def test_a_long_head_that_arrives_at_once_is_refused_too(
    served: Served, target: str, headers: dict[str, str], status: int
) -> None:
    assert served.http.get(target, headers=headers).status_code == status


def test_a_new_connection_takes_the_place_of_the_one_that_was_quiet_for_longest(tokenizer: Tokenizer) -> None:
    with bounded(tokenizer, ConnectionLimits(connections=5)) as served, ExitStack() as stack:
        slow = [stack.enter_context(connect(served)) for _ in range(5)]
        for connection in slow:
            connection.sendall(b"GET /health HTTP/1.1\r\n")
            time.sleep(0.01)
        for oldest in slow[:2]:
            other = stack.enter_context(connect(served))
            other.sendall(GET)
            assert other.recv(65536).startswith(b"HTTP/1.1 200")
            assert is_closed(oldest)
        slow[-1].sendall(b"Host: x\r\n\r\n")
        assert slow[-1].recv(65536).startswith(b"HTTP/1.1 200")


def test_a_running_request_never_makes_room(tokenizer: Tokenizer) -> None:
    body = json.dumps({"prompt": "abc", "max_tokens": 40, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with bounded(tokenizer, ConnectionLimits(connections=2), seconds=0.01) as served, ExitStack() as stack:
        running = [stack.enter_context(connect(served)) for _ in range(2)]
        for connection in running:
            connection.sendall(f"{head}\r\n\r\n".encode() + body)
            assert b"data: " in connection.recv(65536) + connection.recv(65536)
        with connect(served) as other:
            status, refused = answer(other)
        assert (status, refused["error"]["code"]) == (503, "too_many_connections")
        for connection in running:
            received = b""
            while b"[DONE]" not in received:
                received += connection.recv(65536)


def test_a_client_that_never_reads_is_cut_off_and_its_slots_are_freed(tokenizer: Tokenizer) -> None:
    """Four answers with many log-probabilities are several megabytes, and would take twelve seconds."""
    body = json.dumps(
        {"prompt": ["abc"] * 4, "max_tokens": 590, "logprobs": 20, "stream": True},
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with bounded(tokenizer, ConnectionLimits(seconds=0.3), seconds=0.01) as served, socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", served.port))
        reader.sendall(f"{head}\r\n\r\n".encode() + body)
        while not served.engine.submitted:
            time.sleep(0.01)
        served.wait_until_free()
        assert sorted(served.engine.cancelled) == sorted(request.id for request in served.engine.submitted)
        assert served.post("completions", prompt="ab", max_tokens=3).status_code == 200


def test_a_client_that_reads_slowly_gets_all_of_its_answer(tokenizer: Tokenizer) -> None:
    body = json.dumps({"prompt": ["abc"] * 4, "max_tokens": 590, "logprobs": 20, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with bounded(tokenizer, ConnectionLimits(seconds=1)) as served, connect(served) as reader:
        reader.sendall(f"{head}\r\n\r\n".encode() + body)
        time.sleep(0.5)  # the buffers fill
        tail = b""
        while b"[DONE]" not in tail:
            part = reader.recv(1 << 18)
            assert part
            tail = (tail + part)[-100:]
            time.sleep(0.02)
    assert served.engine.cancelled == []


def test_a_client_that_reads_one_large_answer_slowly_gets_all_of_it(tokenizer: Tokenizer) -> None:
    """The answer is written at once, and reading it takes several times as long as a client may read nothing."""
    body = json.dumps({"prompt": ["abc"] * 4, "max_tokens": 590, "logprobs": 20}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with bounded(tokenizer, ConnectionLimits(seconds=0.3)) as served, socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        reader.connect(("127.0.0.1", served.port))
        reader.sendall(f"{head}\r\nConnection: close\r\n\r\n".encode() + body)
        received = reader.recv(65536)
        length = int(re.search(rb"content-length: (\d+)", received, re.IGNORECASE)[1])
        started = time.monotonic()
        while part := reader.recv(32768):
            received += part
            time.sleep(1.2 * len(part) / length)
    assert time.monotonic() - started > 0.6
    assert len(json.loads(received.partition(b"\r\n\r\n")[2])["choices"]) == 4


def test_small_parts_are_sent_at_once(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio leaves TCP's delay on for listeners like this one."""
    delays: list[int] = []
    bound = connections._bound_socket

    def recorded(connection: socket.socket, seconds: float) -> None:
        bound(connection, seconds)
        delays.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(connections, "_bound_socket", recorded)
    with bounded(tokenizer, ConnectionLimits()) as served:
        served.http.get("/health")
    assert delays == [1]
