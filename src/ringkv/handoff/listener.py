"""Listener: accepts decode workers, each in a thread that then receives its messages."""

import logging
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from threading import Event, Lock, Thread

from ringkv.base.errors import RingKVError
from ringkv.handoff.address import Address
from ringkv.handoff.handshake import accepted
from ringkv.handoff.identity import Identity
from ringkv.handoff.states import Transfer
from ringkv.wire.handshake import OtherConfiguration
from ringkv.wire.link import InvalidMessage, Link, LinkClosed

log = logging.getLogger(__name__)
RETRY = 0.1  # seconds before it accepts again after an error
CONNECTIONS = 64  # at most, those without a handshake included
_numbers = count()


@dataclass(eq=False)
class DecodePeer:
    """A decode worker as the prefill worker sees it.

    name: in messages. prefilled: prefixes that wait until the link is free, and their slots. sending: the transfer
    whose prefix is on the way; a link carries a single prefix at a time. since: when it was sent, in seconds of the
    worker's clock.
    """

    link: Link
    name: str
    index: int = field(default_factory=lambda: next(_numbers))
    prefilled: deque[tuple[Transfer, int]] = field(default_factory=deque)
    sending: Transfer | None = None
    since: float = 0.0

    def request_id(self, number: int) -> str:
        """Return the id of a request in this worker's loop. Other decode workers may use the same numbers."""
        return f"{self.index}:{number}"


class Listener:
    def __init__(self, address: Address, secret: bytes, identity: Identity) -> None:
        """Bind the address. Raises RingKVError if it is taken."""
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            self._socket = socket.create_server(address, family=family)
        except OSError as error:
            raise RingKVError(f"cannot listen at {address} ({error.strerror}); choose another host or port") from error
        self._secret, self._identity = secret, identity
        self._lock, self._open, self._peers = Lock(), 0, set[DecodePeer]()
        self._refused: set[tuple[str, str]] = set()  # hosts and reasons that are logged
        self._closing = Event()
        self.address = Address(*self._socket.getsockname()[:2])

    def start(self, deliver: Callable[[DecodePeer, object], None]) -> None:
        """Accept from now on. deliver: takes a peer's messages, in its thread; None is the last one of each."""
        self._deliver = deliver
        Thread(target=self._accept, name="decode-listener", daemon=True).start()

    def close(self) -> None:
        """Accept no more, and end all links."""
        self._closing.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            for peer in self._peers:
                peer.link.shut()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                end, where = self._socket.accept()
            except OSError:  # closed, or that connection was reset, or the process has no descriptor left
                self._closing.wait(RETRY)
                continue
            with self._lock:
                has_room = self._open < CONNECTIONS
                self._open += has_room
            if has_room:
                who = f"a peer at {Address(*where[:2])}"
                Thread(target=self._serve, args=(end, str(where[0]), who), name="decode-peer", daemon=True).start()
            else:
                end.close()

    def _serve(self, end: socket.socket, host: str, who: str) -> None:
        try:
            peer = DecodePeer(accepted(end, self._secret, self._identity, who), who)
        except OtherConfiguration as error:
            self._log_once(host, error)
        except (RingKVError, OSError) as error:
            log.warning("%s", error)
        else:
            self._receive(peer)
        finally:
            with self._lock:
                self._open -= 1

    def _log_once(self, host: str, error: OtherConfiguration) -> None:
        """Log a refusal, unless its host was refused for the same reason: a decode worker tries again and again."""
        with self._lock:
            is_new = (host, error.reason) not in self._refused
            self._refused.add((host, error.reason))
        if is_new:
            log.warning("%s", error)

    def _receive(self, peer: DecodePeer) -> None:
        with self._lock:
            self._peers.add(peer)
        log.warning("%s is connected", peer.name)
        try:
            while True:
                self._deliver(peer, peer.link.receive())
        except LinkClosed:
            log.warning("%s has left; its requests are dropped", peer.name)
        except InvalidMessage as error:
            log.warning("%s sent what is no valid message (%s); its requests are dropped", peer.name, error)
        with self._lock:
            self._peers.discard(peer)
        self._deliver(peer, None)
        peer.link.close()
