"""handshake: how two processes that do not start each other connect: ranks of two machines, prefill and decode workers.

Both prove that they have the secret in RINGKV_RANKS_KEY, by an HMAC of the other's random bytes, before a message is
decoded. Then the process that connects says what it runs, and is refused if the other runs something else. Nothing is
encrypted.
"""

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from multiprocessing.context import AuthenticationError
from os import dup
from threading import Timer
from typing import TypeVar

from ringkv.base.errors import InvalidRequest
from ringkv.wire.link import InvalidMessage, Link

KEY = "RINGKV_RANKS_KEY"
SHORTEST_KEY = 16  # bytes
TIMEOUT = 10.0  # seconds that a handshake may take
ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
"""A machine that is gone is noticed after 25 s; a process that is gone, at once."""

LinkType = TypeVar("LinkType", bound=Link)


@dataclass(frozen=True)
class Hello:
    """What the process that connects runs.

    fingerprint: decides whether both run the same. settings: what it is made of, by name, to name a difference.
    rank: of a process that is a rank.
    """

    fingerprint: str
    settings: Mapping[str, str] = field(default_factory=dict)
    rank: int = 0


@dataclass(frozen=True)
class Welcome:
    """The reply to `Hello`. refusal: why the process is not served; "" if it is."""

    refusal: str = ""


class OtherConfiguration(InvalidRequest):
    """The other end has the secret, and runs something else. reason: what, without the name of that end."""

    def __init__(self, message: str, reason: str, hello: Hello) -> None:
        super().__init__(message)
        self.reason, self.hello = reason, hello


def key(param: str) -> bytes:
    """Return the secret of all processes. Raises InvalidRequest naming `param` if there is none, or it is too short."""
    secret = os.environ.get(KEY, "").encode()
    if len(secret) < SHORTEST_KEY:
        fault = f"has {len(secret)} bytes" if secret else "is not set"
        raise InvalidRequest(
            f"{KEY} {fault}; set it to the same secret of at least {SHORTEST_KEY} bytes on every machine", param
        )
    return secret


def introduce(
    end: socket.socket, secret: bytes, hello: Hello, link_of: Callable[[socket.socket], LinkType], who: str
) -> LinkType:
    """Return the link to the process that was connected to. who: its name in errors.

    link_of: makes the link; it takes `Welcome`. Raises OtherConfiguration if this process is refused, InvalidRequest if
    the other process does not have the secret, LinkClosed or InvalidMessage. The socket is closed then.
    """
    with _proved(end, secret, link_of, first=False, who=who) as link:
        link.send(hello)
        reply = link.receive()
        if not isinstance(reply, Welcome):
            raise InvalidMessage(f"{type(reply).__name__} is not the first message")
        if reply.refusal:
            raise OtherConfiguration(f"{who} refuses this one: {reply.refusal}", reply.refusal, hello)
    return link


def admit(
    end: socket.socket,
    secret: bytes,
    judge: Callable[[Hello], str],
    link_of: Callable[[socket.socket], LinkType],
    who: str,
) -> tuple[LinkType, Hello]:
    """Return the link to a process that has connected, and what it runs; see `introduce`.

    judge: returns why it is refused, or "". link_of: makes the link; it takes `Hello`.
    """
    with _proved(end, secret, link_of, first=True, who=who) as link:
        hello = link.receive()
        if not isinstance(hello, Hello):
            raise InvalidMessage(f"{type(hello).__name__} is not the first message")
        refusal = judge(hello)
        link.send(Welcome(refusal))
        if refusal:
            raise OtherConfiguration(f"{who} is refused: {refusal}", refusal, hello)
    return link, hello


@contextmanager
def _proved(
    end: socket.socket, secret: bytes, link_of: Callable[[socket.socket], LinkType], first: bool, who: str
) -> Iterator[LinkType]:
    """Yield a link once both ends have proved that they have the secret. first: this end begins.

    The link is closed after an error. It is shut if the block has not ended after TIMEOUT, so that reads end.
    """
    timer = Timer(TIMEOUT, _shut, (end,))
    timer.daemon = True
    timer.start()
    try:
        with ExitStack() as after_error:
            after_error.callback(end.close)
            _prove(end, secret, first, who)
            link = link_of(end)
            after_error.callback(link.close)
            yield link
            after_error.pop_all()
    finally:
        timer.cancel()


def _prove(end: socket.socket, secret: bytes, first: bool, who: str) -> None:
    end.settimeout(None)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if end.family in (socket.AF_INET, socket.AF_INET6):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in ALIVE.items():
            if hasattr(socket, name):
                end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    connection = Connection(dup(end.fileno()))
    steps = (deliver_challenge, answer_challenge) if first else (answer_challenge, deliver_challenge)
    try:
        for step in steps:
            step(connection, secret)
    except (AuthenticationError, AssertionError) as error:  # Python 3.11 asserts that a challenge is one
        raise InvalidRequest(f"{who} has not proved that it has the secret; set {KEY} to the same on both") from error
    except (EOFError, OSError) as error:
        raise InvalidRequest(
            f"{who} has not proved that it has the secret: it ended the connection, or took longer than {TIMEOUT:g} s; "
            "wait if it is still starting"
        ) from error
    finally:
        connection.close()


def _shut(end: socket.socket) -> None:
    with suppress(OSError):  # it is closed
        end.shutdown(socket.SHUT_RDWR)
