"""Who may connect to a prefill worker."""

import logging
import socket
import struct
import threading
import time
from errno import ECONNABORTED, EMFILE
from itertools import accumulate

import pytest
import toy

from ringkv.base.errors import InvalidRequest, PrefillUnavailable, RingKVError
from ringkv.handoff.address import Address
from ringkv.handoff.handshake import dialled
from ringkv.handoff.identity import Identity
from ringkv.handoff.listener import Listener
from ringkv.handoff.prefill_peer import next_wait
from ringkv.wire import handshake
from tests.handoff.workers import ANY, SECRET, TOY_RUNS, decoding, prefilling, until


def test_a_peer_with_another_secret_is_refused_by_both(caplog: pytest.LogCaptureFixture):
    with prefilling(toy.ToyEngine()) as one, pytest.raises(InvalidRequest, match="RINGKV_RANKS_KEY"):
        dialled(one.address, b"another of 24 characters", TOY_RUNS)
    until(lambda: "has not proved that it has the secret" in caplog.text)


def test_a_peer_that_runs_something_else_is_refused_and_told_why(caplog: pytest.LogCaptureFixture):
    here, there = ({"dtype": "float32", "kv_budget": budget, "kv_sinks": sinks} for budget, sinks in ("24", "48"))
    reason = "kv_budget is 4 at the decode worker and 2 at the prefill worker"
    with prefilling(toy.ToyEngine(), settings=here) as one:
        for _ in range(3):
            with pytest.raises(InvalidRequest, match=f"refuses this one: {reason}"):
                dialled(one.address, SECRET, Identity("other", there))
        with pytest.raises(InvalidRequest, match="files of weights"):
            dialled(one.address, SECRET, Identity("other", here))
        until(lambda: "files of weights" in caplog.text)
    assert caplog.text.count(f"is refused: {reason}") == 1


@pytest.mark.parametrize(("error", "longest"), [(InvalidRequest("refused"), 30), (PrefillUnavailable("none"), 5)])
def test_attempts_are_twice_as_far_apart_each_time_up_to_the_longest(error: RingKVError, longest: float):
    waits = list(accumulate(range(12), lambda wait, _: next_wait(wait, error), initial=0.0))[1:]
    assert waits == [min(0.1 * 2**n, longest) for n in range(12)]


def test_bytes_before_the_proof_end_a_connection_and_silence_delays_no_other(caplog: pytest.LogCaptureFixture):
    with prefilling(toy.ToyEngine()) as one, socket.create_connection(one.address):
        with socket.create_connection(one.address) as other:
            other.sendall(b"GET / HTTP/1.1\r\n\r\n" * 99)
            until(lambda: "has not proved" in caplog.text)
        dialled(one.address, SECRET, TOY_RUNS).close()


def test_a_peer_that_dribbles_its_proof_gets_no_more_time(caplog: pytest.LogCaptureFixture, monkeypatch):
    monkeypatch.setattr(handshake, "TIMEOUT", 0.2)
    with prefilling(toy.ToyEngine()) as one, socket.create_connection(one.address) as slow:
        slow.sendall(struct.pack("!i", 200))  # the length of its answer to the challenge
        with pytest.raises(OSError, match=r"reset|pipe"):
            until(lambda: False, lambda: (slow.sendall(b"a"), time.sleep(0.02)))
    assert " 0.2 s" in caplog.text


def test_an_error_of_one_connection_ends_neither_end(monkeypatch: pytest.MonkeyPatch):
    """Each thread's first connection has an error: it was reset, or the process has no descriptor left."""
    errors = {"decode-listener": ECONNABORTED, "decode-peer": EMFILE, "prefill-127.0.0.1": EMFILE}

    def fail_once() -> None:
        name = threading.current_thread().name.partition(":")[0]
        if name in errors:
            raise OSError(errors.pop(name), "an error of one connection")

    accept, dup = socket.socket.accept, handshake.dup
    monkeypatch.setattr(socket.socket, "accept", lambda end: (fail_once(), accept(end))[1])
    monkeypatch.setattr(handshake, "dup", lambda number: (fail_once(), dup(number))[1])
    with prefilling(toy.ToyEngine()) as one, decoding(toy.ToyEngine(), one.address):
        assert not errors


def test_where_nothing_listens_is_named():
    with pytest.raises(PrefillUnavailable, match=r"127\.0\.0\.1:1 "):
        dialled(Address("127.0.0.1", 1), SECRET, TOY_RUNS)


def test_a_taken_port_is_named():
    first = Listener(ANY, SECRET, TOY_RUNS)
    try:
        with pytest.raises(RingKVError, match="cannot listen"):
            Listener(first.address, SECRET, TOY_RUNS)
    finally:
        first.close()


def test_addresses_are_parsed_and_others_are_refused():
    assert Address.parse(" 10.0.0.1:7070") == ("10.0.0.1", 7070)
    assert str(Address.parse("[::1]:7")) == "[::1]:7"
    for text in ("host", "host:", ":7", "host:x", "host:70000"):
        with pytest.raises(InvalidRequest, match="give HOST:PORT"):
            Address.parse(text)


@pytest.fixture(autouse=True)
def _warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "ringkv")
