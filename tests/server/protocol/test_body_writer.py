import json
import socket

import h11
import pytest

from ringkv.server.protocol import stream
from tests.server.conftest import Served

BODY = json.dumps({"prompt": "h\u00e9 \U0001f30a", "max_tokens": 40, "stream": True}).encode()


def received(served: Served, version: str) -> bytes:
    """Return all bytes of a streamed answer, with its head."""
    head = f"POST /v1/completions HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(f"{head}Connection: close\r\nContent-Length: {len(BODY)}\r\n\r\n".encode() + BODY)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def texts(body: bytes) -> list[str]:
    *events, done, rest = body.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events]


def unchunked(answer: bytes) -> bytes:
    """Return the body as h11 reads it, to its end."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="POST", target="/", headers=[("Host", "localhost"), ("Content-Length", "0")]))
    client.send(h11.EndOfMessage())
    client.receive_data(answer)
    body = b""
    while not isinstance(event := client.next_event(), h11.EndOfMessage):
        assert event is not h11.NEED_DATA
        body += bytes(event.data) if isinstance(event, h11.Data) else b""
    return body


def test_a_body_written_directly_is_the_one_that_is_sent(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    written = texts(unchunked(received(served, "1.1")))
    monkeypatch.setattr(stream, "direct_write", lambda _: None)
    assert texts(unchunked(received(served, "1.1"))) == written
    assert len(written) == 40


def test_a_client_of_http_1_0_gets_a_body_without_chunks(served: Served) -> None:
    head, body = received(served, "1.0").split(b"\r\n\r\n", 1)
    assert b"chunked" not in head
    assert texts(body) == texts(unchunked(received(served, "1.1")))
