"""PrefillPeers: the prefill workers of a decode worker, and which of them gets a prompt."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from queue import Empty, SimpleQueue

from ringkv.base.errors import PrefillUnavailable
from ringkv.base.request import Request
from ringkv.handoff.address import Address
from ringkv.handoff.identity import Identity
from ringkv.handoff.prefill_peer import Arrived, News, PrefillPeer
from ringkv.handoff.shape import PrefixShape
from ringkv.handoff.states import Transfer


class PrefillPeers:
    """Call it from the engine's thread. `waker` is readable when there is news."""

    def __init__(self, addresses: Sequence[Address], secret: bytes, identity: Identity, shape: PrefixShape) -> None:
        self.waker = Waker()
        self._news: SimpleQueue[News] = SimpleQueue()
        self._numbers = count()
        self._asked: dict[str, tuple[PrefillPeer, Transfer]] = {}  # by request, until it is inserted or has ended
        self._peers = [PrefillPeer(one, secret, identity, shape, self._deliver) for one in addresses]

    @property
    def connected(self) -> int:
        return sum(peer.is_connected for peer in self._peers)

    @property
    def has_news(self) -> bool:
        return not self._news.empty()

    def ask(self, request: Request) -> None:
        """Request a prompt's prefix of the worker with the fewest requested tokens, or of one that has the prompt.

        Raises PrefillUnavailable if no worker is connected. Grammars, forced tokens and timeouts stay here.
        """
        sampling = replace(request.sampling, grammar="")
        transfer = Transfer(next(self._numbers), replace(request, sampling=sampling, forced=(), timeout=None))
        loads = [(peer, load) for peer in self._peers if (load := peer.load) is not None]
        if not loads:
            addresses = ", ".join(str(peer.address) for peer in self._peers)
            raise PrefillUnavailable(f"no prefill worker is connected; start one at {addresses}, or try again later")
        peer, _ = min(loads, key=lambda one: (not one[0].has_prompt_of(transfer), one[1]))
        peer.ask(transfer)
        self._asked[request.id] = peer, transfer

    def drop(self, request_id: str) -> None:
        """Cancel a prefix, whatever its state. Does nothing for a request that has none."""
        if found := self._asked.pop(request_id, None):
            peer, transfer = found
            peer.drop(transfer)

    def insert(self, arrived: Arrived) -> None:
        """Note that a prefix that is still asked for is inserted now."""
        peer, transfer = self._asked.pop(arrived.transfer.request.id)
        peer.insert(transfer)

    def is_asked(self, transfer: Transfer) -> bool:
        """Whether a request still waits for this transfer."""
        found = self._asked.get(transfer.request.id)
        return found is not None and found[1] is transfer

    def next_news(self) -> News | None:
        """Return what arrived next; None if nothing has."""
        try:
            return self._news.get_nowait()
        except Empty:
            self.waker.clear()
            return None

    def close(self) -> None:
        """End all links."""
        for peer in self._peers:
            peer.close()
        self.waker.close()

    def _deliver(self, news: News) -> None:
        self._news.put(news)
        self.waker.wake()


class Waker:
    """Wakes a thread that waits for a descriptor, which is readable from `wake` to `clear`."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        return self._read

    def wake(self) -> None:
        with suppress(BlockingIOError):  # it is full, so it is readable
            os.write(self._write, b"\0")

    def clear(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)
