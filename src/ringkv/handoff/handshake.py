"""handshake: how a decode worker connects to a prefill worker.

Both prove that they have the secret in RINGKV_RANKS_KEY, by an HMAC of the other's random bytes, before a message is
decoded. Then the decode worker says what it runs, and is refused if the prefill worker runs something else. Nothing is
encrypted.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from multiprocessing.context import AuthenticationError
from os import dup
from threading import Timer
from typing import get_args

from ringkv.base.errors import InvalidRequest, PrefillUnavailable
from ringkv.handoff.address import Address
from ringkv.handoff.identity import Identity
from ringkv.handoff.link import Link, LinkClosed
from ringkv.handoff.messages import FromDecode, FromPrefill, Hello, Welcome
from ringkv.ranks.rendezvous import KEY
from ringkv.wire.codec import Codec
from ringkv.wire.link import InvalidMessage

TIMEOUT = 10.0  # seconds that a connection may take, and the whole handshake after it
ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
"""A machine that is gone is noticed after 25 s; a process that is gone, at once."""
DECODE, PREFILL = Codec(*get_args(FromDecode)), Codec(*get_args(FromPrefill))
_WRONG = (AuthenticationError, AssertionError)  # Python 3.11 asserts that a challenge is one


class RunsOther(InvalidRequest):
    """A decode worker has the secret and runs something else. reason: what, without the worker's name."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message, "prefill")
        self.reason = reason


def dialled(address: Address, secret: bytes, identity: Identity) -> Link:
    """Connect to a prefill worker. Raises PrefillUnavailable if none listens, InvalidRequest if it refuses."""
    who = f"the prefill worker at {address}"
    try:
        end = socket.create_connection(address, TIMEOUT)
    except OSError as error:
        raise PrefillUnavailable(f"no prefill worker listens at {address} ({error}); start one there") from error
    try:
        with _proved(end, secret, PREFILL, first=False, who=who) as link:
            link.send(Hello(identity.fingerprint, identity.settings))
            reply = link.receive()
            if not isinstance(reply, Welcome):
                raise InvalidMessage(f"a prefill worker does not begin with {type(reply).__name__}")
            if reply.refusal:
                raise InvalidRequest(f"{who} refuses this one: {reply.refusal}", "prefill")
    except (LinkClosed, InvalidMessage) as error:
        raise PrefillUnavailable(f"{who} ended the connection ({error})") from error
    return link


def accepted(end: socket.socket, secret: bytes, identity: Identity, who: str) -> Link:
    """Accept a decode worker. who: its name in messages. Raises InvalidRequest if it is refused.

    It is `RunsOther` if the worker has proved that it has the secret.
    """
    try:
        with _proved(end, secret, DECODE, first=True, who=who) as link:
            hello = link.receive()
            if not isinstance(hello, Hello):
                raise InvalidMessage(f"a decode worker does not begin with {type(hello).__name__}")
            refusal = identity.refusal(Identity(hello.fingerprint, hello.settings))
            link.send(Welcome(refusal))
            if refusal:
                raise RunsOther(f"{who} is refused: {refusal}", refusal)
    except (LinkClosed, InvalidMessage) as error:
        raise InvalidRequest(f"{who} is not a decode worker ({error})", "prefill") from error
    return link


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
    except (EOFError, OSError) as error:
        raise InvalidRequest(
            f"{who} has not proved that it has the secret: it ended the connection, or took longer than {TIMEOUT:g} s; "
            "wait if it is still starting"
        ) from error
    finally:
        connection.close()


def _prepare(end: socket.socket) -> None:
    end.settimeout(None)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if end.family in (socket.AF_INET, socket.AF_INET6):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in ALIVE.items():
            if hasattr(socket, name):
                end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


@contextmanager
def _proved(end: socket.socket, secret: bytes, codec: Codec, first: bool, who: str) -> Iterator[Link]:
    """Yield a link once both ends have proved that they have the secret. See `prove`.

    The link is closed after an error. It is shut if the block has not ended after TIMEOUT, so that reads end.
    """
    timer = Timer(TIMEOUT, _shut, (end,))
    timer.daemon = True
    timer.start()
    try:
        prove(end, secret, first, who)
        link = Link(end, codec)
        try:
            yield link
        except BaseException:
            link.close()
            raise
    except BaseException:
        end.close()
        raise
    finally:
        timer.cancel()


def _shut(end: socket.socket) -> None:
    with suppress(OSError):  # it is closed
        end.shutdown(socket.SHUT_RDWR)
