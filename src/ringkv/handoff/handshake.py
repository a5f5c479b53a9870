"""handshake: how a decode worker connects to a prefill worker.

Both prove that they have the secret in RINGKV_RANKS_KEY, by an HMAC of the other's random bytes, before a message is
decoded. Then the decode worker says what it runs, and is refused if the prefill worker runs something else. Nothing is
encrypted.
"""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from multiprocessing.context import AuthenticationError
from os import dup
from typing import get_args

from ringkv.base.errors import InvalidRequest, PrefillUnavailable
from ringkv.handoff.address import Address
from ringkv.handoff.link import Link, LinkClosed
from ringkv.handoff.messages import FromDecode, FromPrefill, Hello, Welcome
from ringkv.ranks.rendezvous import KEY
from ringkv.worker.channel import InvalidMessage
from ringkv.worker.codec import Codec

TIMEOUT = 10  # seconds that a connection may take, and each message of the handshake
ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
"""A machine that is gone is noticed after 25 s; a process that is gone, at once."""
DECODE, PREFILL = Codec(*get_args(FromDecode)), Codec(*get_args(FromPrefill))
_WRONG = (AuthenticationError, AssertionError, EOFError, OSError)  # Python 3.11 asserts that a challenge is one


def dialled(address: Address, secret: bytes, fingerprint: str) -> Link:
    """Connect to a prefill worker. Raises PrefillUnavailable if none listens, InvalidRequest if it refuses."""
    try:
        end = socket.create_connection(address, TIMEOUT)
    except OSError as error:
        raise PrefillUnavailable(f"no prefill worker listens at {address} ({error}); start one there") from error
    with _closed_on_error(end):
        prove(end, secret, first=False, who=f"the prefill worker at {address}")
        link = Link(end, PREFILL)
    try:
        link.send(Hello(fingerprint))
        reply = link.receive()
        if not isinstance(reply, Welcome):
            raise InvalidMessage(f"a prefill worker does not begin with {type(reply).__name__}")
        if reply.refusal:
            raise InvalidRequest(f"the prefill worker at {address} refuses this one: {reply.refusal}", "prefill")
    except (LinkClosed, InvalidMessage) as error:
        link.close()
        raise PrefillUnavailable(f"the prefill worker at {address} ended the connection ({error})") from error
    except BaseException:
        link.close()
        raise
    _set_timeout(end, 0)
    return link


def accepted(end: socket.socket, secret: bytes, fingerprint: str, who: str) -> Link:
    """Accept a decode worker. who: it, in messages. Raises InvalidRequest if it is refused."""
    with _closed_on_error(end):
        prove(end, secret, first=True, who=who)
        link = Link(end, DECODE)
    try:
        hello = link.receive()
        if not isinstance(hello, Hello):
            raise InvalidMessage(f"a decode worker does not begin with {type(hello).__name__}")
        refusal = "" if hello.fingerprint == fingerprint else OTHER
        link.send(Welcome(refusal))
        if refusal:
            raise InvalidRequest(f"{who} is refused: {refusal}", "prefill")
    except (LinkClosed, InvalidMessage) as error:
        link.close()
        raise InvalidRequest(f"{who} is no decode worker ({error})", "prefill") from error
    except BaseException:
        link.close()
        raise
    _set_timeout(end, 0)
    return link


OTHER = "it has another model, dtype, format or KV setting; start both with the same options"


def prove(end: socket.socket, secret: bytes, first: bool, who: str) -> None:
    """Prove to each other that both have the secret. first: this end begins. Raises InvalidRequest."""
    _prepare(end)
    connection = Connection(dup(end.fileno()))
    steps = (deliver_challenge, answer_challenge) if first else (answer_challenge, deliver_challenge)
    try:
        for step in steps:
            step(connection, secret)
    except _WRONG as error:
        raise InvalidRequest(f"{who} has not proved that it has the secret; set {KEY} to the same on both") from error
    finally:
        connection.close()


def _prepare(end: socket.socket) -> None:
    end.settimeout(None)
    _set_timeout(end, TIMEOUT)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if end.family in (socket.AF_INET, socket.AF_INET6):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in ALIVE.items():
            if hasattr(socket, name):
                end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _set_timeout(end: socket.socket, seconds: int) -> None:
    """Let reads fail that take longer; 0 is no limit. `settimeout` would make the descriptor non-blocking."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))


@contextmanager
def _closed_on_error(end: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        end.close()
        raise
