"""PrefillPeer: a prefill worker as the decode worker sees it. A thread connects to it, again if it is lost.

It receives a prefix into its one buffer, which is allocated at the start. The buffer is free once the prefix is in its
slot. So a cancelled slot may be taken at once, and memory does not depend on how many prefixes are requested.
"""

import logging
from collections.abc import Callable
from threading import Event, Lock, Semaphore, Thread
from typing import NamedTuple

from ringkv.base.errors import InvalidRequest, PrefillUnavailable, RingKVError
from ringkv.base.events import TokenLogprob
from ringkv.base.failure import Failure, in_short
from ringkv.handoff.address import Address
from ringkv.handoff.handshake import dialled
from ringkv.handoff.identity import Identity
from ringkv.handoff.messages import Ask, Drop, Prefix, PromptDropped, PromptFailed, PromptScored, Received
from ringkv.handoff.shape import PrefixShape
from ringkv.handoff.states import State, Transfer
from ringkv.wire.link import InvalidMessage, Link, LinkClosed

log = logging.getLogger(__name__)

FIRST, LONGEST = 0.1, 5.0  # seconds before it connects again; they double with each failure
REFUSED = 30.0  # the longest if the worker refuses, which takes a person to change


class Arrived(NamedTuple):
    """A prefix in its peer's buffer. `done` frees the buffer."""

    prefix: Prefix
    raw: memoryview
    done: Callable[[], None]


class News(NamedTuple):
    """What has happened to a transfer; None for both if a worker is connected or lost, so that the loop reports it.

    what: the prefix, log-probabilities of its prompt, or why it will not arrive.
    """

    transfer: Transfer | None = None
    what: Arrived | tuple[TokenLogprob, ...] | Failure | None = None


def next_wait(wait: float, error: Exception) -> float:
    """Return the seconds to wait after this error, which came after a wait of `wait` seconds; 0 is none."""
    return min(2 * wait or FIRST, REFUSED if isinstance(error, InvalidRequest) else LONGEST)


class PrefillPeer:
    def __init__(
        self, address: Address, secret: bytes, identity: Identity, shape: PrefixShape, deliver: Callable[[News], None]
    ) -> None:
        """deliver: takes what arrives, in this peer's thread."""
        self.address = address
        self._secret, self._identity, self._shape, self._deliver = secret, identity, shape, deliver
        self._buffer, self._is_free = memoryview(bytearray(shape.largest)), Semaphore()
        self._lock, self._closing = Lock(), Event()
        self._link: Link | None = None
        self._transfers: dict[int, Transfer] = {}  # of this link, that await a reply
        self._thread = Thread(target=self._run, name=f"prefill-{address}", daemon=True)
        self._thread.start()

    @property
    def load(self) -> int | None:
        """Prompt tokens that are requested and have not arrived; None if it is not connected."""
        with self._lock:
            tokens = sum(len(transfer.request.tokens) for transfer in self._transfers.values())
            return None if self._link is None else tokens

    def has_prompt_of(self, transfer: Transfer) -> bool:
        """Whether the same prompt is requested of it already, so that they can share a prefill."""
        prompt = transfer.request.tokens, transfer.request.salt
        with self._lock:
            return any((other.request.tokens, other.request.salt) == prompt for other in self._transfers.values())

    def ask(self, transfer: Transfer) -> None:
        """Request a prefix. Raises PrefillUnavailable if the worker is not connected."""
        with self._lock:
            if self._link is None:
                raise PrefillUnavailable(f"the prefill worker at {self.address} was lost; send the request again")
            self._link.send(Ask(transfer.number, transfer.request))
            self._transfers[transfer.number] = transfer

    def drop(self, transfer: Transfer) -> None:
        """Cancel a transfer, whatever its state."""
        with self._lock:
            before = transfer.state
            if transfer.drop() and before is State.RESERVED and self._link:
                self._link.send(Drop(transfer.number))

    def close(self) -> None:
        self._closing.set()
        self._is_free.release()
        with self._lock:
            if self._link:
                self._link.shut()
        self._thread.join()

    def _run(self) -> None:
        wait, logged = 0.0, ""
        while not self._closing.wait(wait):
            try:
                link = dialled(self.address, self._secret, self._identity)
            except (RingKVError, OSError) as error:  # OSError: this process has no descriptor left
                if str(error) != logged:
                    log.warning("%s", logged := str(error))
                wait = next_wait(wait, error)
                continue
            log.warning("connected to the prefill worker at %s", self.address)
            wait, logged = self._follow(link), ""

    def _follow(self, link: Link) -> float:
        """Receive until the link ends. Returns the seconds to wait before the next link."""
        with self._lock:
            self._link = link
        self._deliver(News())
        wait, why = FIRST, "was lost"
        try:
            while not self._closing.is_set():
                self._take(link, link.receive())
        except LinkClosed:
            pass
        except InvalidMessage as error:
            wait, why = LONGEST, f"sent what is no valid prefix ({error})"
        except Exception as error:
            log.exception("a bug in the link to the prefill worker at %s", self.address)
            wait, why = LONGEST, f"sent what could not be received ({in_short(error)})"
        self._lose(f"the prefill worker at {self.address} {why}")
        link.close()
        return wait

    def _lose(self, why: str) -> None:
        """Fail the requests of this link."""
        with self._lock:
            self._link, transfers = None, list(self._transfers.values())
            self._transfers.clear()
            failed = [transfer for transfer in transfers if transfer.drop()]
        if not self._closing.is_set():
            log.warning("%s; requests that failed there: %d", why, len(failed))
        failure = Failure("PrefillUnavailable", f"{why} before the prompt was prefilled; send the request again")
        for transfer in failed:
            self._deliver(News(transfer, failure))
        self._deliver(News())

    def _take(self, link: Link, message: object) -> None:
        """Handle a message. Raises InvalidMessage for a message that is not due."""
        match message:
            case PromptScored(number, logprobs):
                if (transfer := self._awaited(number)).state is State.RESERVED:
                    self._deliver(News(transfer, logprobs))
            case PromptFailed(number, failure):
                if self._end(transfer := self._awaited(number)):
                    self._deliver(News(transfer, failure))
            case PromptDropped(number):
                if (transfer := self._awaited(number)).state is not State.DROPPED:
                    raise InvalidMessage("a prefix that was not cancelled was dropped")
                self._end(transfer)
            case Prefix():
                self._receive(link, self._awaited(message.number), message)
            case _:
                raise InvalidMessage(f"a prefill worker does not send {type(message).__name__}")

    def _awaited(self, number: int) -> Transfer:
        with self._lock:
            if number not in self._transfers:
                raise InvalidMessage(f"a reply to request {number}, which awaits none")
            return self._transfers[number]

    def _end(self, transfer: Transfer) -> bool:
        """Note that a transfer ends without a prefix. Returns whether it was not dropped before."""
        with self._lock:
            del self._transfers[transfer.number]
            return transfer.drop()

    def _receive(self, link: Link, transfer: Transfer, prefix: Prefix) -> None:
        """Receive the raw bytes of a prefix, and acknowledge them. One that is cancelled meanwhile is discarded."""
        if prefix.fingerprint != self._identity.fingerprint:
            raise InvalidMessage("another fingerprint than at the start")
        self._shape.check(prefix, len(transfer.request.tokens))
        with self._lock:
            if transfer.state is State.RESERVED:
                transfer.to(State.SENT)
        self._is_free.acquire()
        raw = self._buffer[: prefix.entries + prefix.logits]
        try:
            link.receive_into(raw)
            self._shape.check_numbers(prefix, raw)
        except (LinkClosed, InvalidMessage):
            self._is_free.release()
            raise
        with self._lock:
            del self._transfers[transfer.number]
            if is_wanted := transfer.state is State.SENT:
                transfer.to(State.ACKNOWLEDGED)
        link.send(Received(transfer.number))
        if is_wanted:
            self._deliver(News(transfer, Arrived(prefix, raw, self._is_free.release)))
        else:
            self._is_free.release()
