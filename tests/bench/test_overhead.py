import socket
from collections.abc import Mapping
from threading import Thread
from typing import Any, cast

import pytest

from bench.overhead import ScriptedServer, Spent, measure, read_all

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"


class Counted:
    """A server whose process takes 50 us for each token and 1 ms for each request; its engine 10 us for each token."""

    def run(self, path: str, fields: Mapping[str, Any], streams: int, rounds: int, tokens: int) -> Spent:
        requests = streams * rounds
        count = requests * tokens
        return Spent(50e-6 * count + 1e-3 * requests, 10e-6 * count, 1e-3 * count)


def test_a_tokens_time_is_separate_from_that_of_its_request() -> None:
    got = measure(cast(ScriptedServer, Counted()), "completions", streams=4, tokens=100, rounds=2)
    assert got.http_token_s == pytest.approx(50e-6)
    assert got.engine_token_s == pytest.approx(10e-6)
    assert got.http_request_s == pytest.approx(1e-3)
    assert got.tokens_per_s == pytest.approx(1000)


def test_each_connection_sends_its_next_request_after_the_answer_to_the_last() -> None:
    received: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        while request := connection.recv(100):
            received.append(request)
            whole = CHUNKED % (5, b"data\n")
            connection.sendall(whole[:-3])  # the end arrives in two parts
            connection.sendall(whole[-3:])

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            for _ in range(3):
                Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

        Thread(target=accept, daemon=True).start()
        read_all(listener.getsockname()[1], b"request", streams=3, rounds=4)
    assert received == [b"request"] * 12
