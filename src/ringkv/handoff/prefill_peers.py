"""PrefillPeers: the prefill workers of a decode worker, and which of them gets a prompt."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from queue import Empty, SimpleQueue
from socket import socketpair

from ringkv.base.errors import PrefillUnavailable
from ringkv.base.request import Request
from ringkv.handoff.address import Address
from ringkv.handoff.identity import Identity
from ringkv.handoff.prefill_peer import News, PrefillPeer
from ringkv.handoff.shape import PrefixShape
from ringkv.handoff.states import State, Transfer


class PrefillPeers:
    """Call it from the engine's thread. waker: a socket that is readable when there is news."""

    def __init__(self, addresses: Sequence[Address], secret: bytes, identity: Identity, shape: PrefixShape) -> None:
        self.waker, self._wake = socketpair()
        self.waker.setblocking(False)
        self._wake.setblocking(False)
        self._news: SimpleQueue[News] = SimpleQueue()
        self._numbers = count()
        self._asked: dict[str, tuple[PrefillPeer, Transfer]] = {}  # by request, until it is inserted or has ended
        self._peers = [PrefillPeer(address, secret, identity, shape, self._deliver) for address in addresses]

    @property
    def connected(self) -> int:
        return sum(peer.load is not None for peer in self._peers)

    @property
    def has_news(self) -> bool:
        return not self._news.empty()

    def ask(self, request: Request) -> None:
        """Request a prompt's prefix of the worker with the fewest requested tokens, or of a worker that has the prompt.

        Raises PrefillUnavailable if no worker is connected. Grammars, forced tokens and timeouts stay here.
        """
        sampling = replace(request.sampling, grammar="")
        transfer = Transfer(next(self._numbers), replace(request, sampling=sampling, forced=(), timeout=None))
        loads = [(peer, load) for peer in self._peers if (load := peer.load) is not None]
        if not loads:
            addresses = ", ".join(str(peer.address) for peer in self._peers)
            raise PrefillUnavailable(f"no prefill worker is connected; start one at {addresses}, or try again later")
        peer, _ = min(loads, key=lambda item: (not item[0].has_prompt_of(transfer), item[1]))
        peer.ask(transfer)
        self._asked[request.id] = peer, transfer

    def drop(self, request_id: str) -> None:
        """Cancel a prefix, whatever its state. Does nothing for a request that has none."""
        if asked := self._asked.pop(request_id, None):
            peer, transfer = asked
            peer.drop(transfer)

    def insert(self, request_id: str) -> None:
        """Note that the prefix of a request is inserted now."""
        _, transfer = self._asked.pop(request_id)
        transfer.to(State.INSERTED)

    def is_asked(self, transfer: Transfer | None) -> bool:
        """Whether a request still waits for this transfer."""
        return transfer is not None and self._asked.get(transfer.request.id, (None, None))[1] is transfer

    def next_news(self) -> News | None:
        """Return what arrived next; None if nothing has."""
        try:
            return self._news.get_nowait()
        except Empty:
            with suppress(BlockingIOError):
                while self.waker.recv(4096):
                    pass
            return None

    def close(self) -> None:
        """End all links."""
        for peer in self._peers:
            peer.close()
        self.waker.close()
        self._wake.close()

    def _deliver(self, news: News) -> None:
        self._news.put(news)
        with suppress(BlockingIOError):  # it is full, so the other end is readable
            self._wake.send(b"\0")
