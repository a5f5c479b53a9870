"""PrefillWorker: serves the prompts of decode workers. Its engine's thread calls it; each link has threads of its own.

`ringkv serve --role prefill` calls `run`. A prefix stays in its slot until the link is free, and then until the decode
worker has it. So what waits takes slots, and no other memory than one packet for each link.
"""

import logging
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic

from ringkv.base.config import EngineConfig
from ringkv.base.engine import Engine
from ringkv.base.errors import EngineDied, RingKVError
from ringkv.base.events import Event, Failed, Scored
from ringkv.base.failure import Failure, failure_of
from ringkv.base.progress import Progress
from ringkv.base.ranks import RankEnded
from ringkv.handoff.address import Address
from ringkv.handoff.identity import Identity
from ringkv.handoff.listener import DecodePeer, Listener
from ringkv.handoff.messages import Ask, Drop, Prefix, PromptDropped, PromptFailed, PromptScored, Received
from ringkv.handoff.states import State, Transfer
from ringkv.scheduler.loop import Loop
from ringkv.scheduler.stopwatch import Clock
from ringkv.wire.handshake import key
from ringkv.worker.process import BUILDER, STOPPING, imported

log = logging.getLogger(__name__)

ACKNOWLEDGED_WITHIN = 60.0  # seconds; a decode worker that takes longer is stuck, and keeps slots from others
LOOK_EVERY = 5.0  # seconds


class PrefillWorker:
    def __init__(self, engine: Engine, fingerprint: str, clock: Clock = monotonic) -> None:
        self._loop, self._fingerprint = Loop(engine, clock=clock, park=self._prefilled), fingerprint
        self._now = clock
        self._inbox: SimpleQueue[tuple[DecodePeer, object] | None] = SimpleQueue()
        self._asked: dict[str, tuple[DecodePeer, Transfer]] = {}  # by request id in the loop
        self._ends = False

    def deliver(self, peer: DecodePeer, message: object) -> None:
        """Take a message of a peer, from any thread; None if the peer is lost."""
        self._inbox.put((peer, message))

    def stop(self) -> None:
        """Let `run` return, from any thread or a signal's handler."""
        self._inbox.put(None)

    def run(self) -> None:
        """Serve until `stop`."""
        while not self._ends:
            self.step(waits=self._loop.idle)

    def step(self, waits: bool = False) -> None:
        """Handle what has arrived, do an action of the loop, and send what is due. waits: for something to arrive."""
        self._take_messages(waits)
        self._report(self._loop.step())
        self._send()

    @property
    def requests(self) -> int:
        """Requests that have had no reply, or whose prefix is on the way."""
        return len(self._asked)

    def _take_messages(self, waits: bool) -> None:
        with suppress(Empty):
            while not self._ends:
                item = self._inbox.get(waits, LOOK_EVERY)
                waits = False
                if item is None:
                    self._ends = True
                else:
                    self._take(*item)

    def _take(self, peer: DecodePeer, message: object) -> None:
        """Handle a message. After a message that is not due the link ends, and the peer is lost then."""
        match message:
            case None:  # the peer is lost
                peer.sending = None
                for transfer in [transfer for other, transfer in self._asked.values() if other is peer]:
                    self._end(peer, transfer)
            case Ask(number) if peer.request_id(number) not in self._asked:
                self._ask(peer, message)
            case Drop(number):
                _, dropped = self._asked.get(peer.request_id(number), (peer, None))
                # A prefix that is sent will be acknowledged.
                if dropped is not None and dropped.state is State.RESERVED:
                    self._end(peer, dropped)
                    peer.link.send(PromptDropped(number))
            case Received(number) if peer.sending and peer.sending.number == number:
                peer.sending.to(State.ACKNOWLEDGED)
                self._forget(peer, peer.sending)
                peer.sending = None
            case _:
                peer.link.shut()

    def _ask(self, peer: DecodePeer, ask: Ask) -> None:
        transfer, request_id = Transfer(ask.number, ask.request), peer.request_id(ask.number)
        self._asked[request_id] = peer, transfer
        # Its timeout ends it at the decode worker, which then drops it.
        self._report(self._loop.submit(replace(ask.request, id=request_id, timeout=None)))

    def _end(self, peer: DecodePeer, transfer: Transfer) -> None:
        transfer.drop()
        peer.prefilled = deque(waiting for waiting in peer.prefilled if waiting[0] is not transfer)
        self._forget(peer, transfer)

    def _forget(self, peer: DecodePeer, transfer: Transfer) -> None:
        request_id = peer.request_id(transfer.number)
        del self._asked[request_id]
        self._loop.cancel(request_id)

    def _prefilled(self, request_id: str, slot: int) -> None:
        peer, transfer = self._asked[request_id]
        peer.prefilled.append((transfer, slot))

    def _report(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Scored(request_id, logprobs):
                    peer, transfer = self._asked[request_id]
                    peer.link.send(PromptScored(transfer.number, logprobs))
                case Failed(request_id, kind, text, param):
                    peer, transfer = self._asked[request_id]
                    self._end(peer, transfer)
                    peer.link.send(PromptFailed(transfer.number, Failure(kind, text, param)))

    def _send(self) -> None:
        """Send each peer the next prefix, if none is on the way to it. End the link if it does not acknowledge it."""
        for peer in {peer for peer, _ in self._asked.values()}:
            if peer.prefilled and peer.sending is None:
                self._export(peer, *peer.prefilled.popleft())
            if peer.sending and self._now() - peer.since > ACKNOWLEDGED_WITHIN:
                log.warning("%s has not acknowledged a prefix for %g s; it is cut off", peer.name, ACKNOWLEDGED_WITHIN)
                peer.since = inf
                peer.link.shut()

    def _export(self, peer: DecodePeer, transfer: Transfer, slot: int) -> None:
        number = transfer.number
        try:
            packet = self._loop.engine.export(slot)
        except RingKVError as error:
            self._end(peer, transfer)
            peer.link.send(PromptFailed(number, failure_of(peer.request_id(number), error)))
            return
        sizes = len(packet.entries), len(packet.logits)
        usage = self._loop.scheduler.usage(peer.request_id(number))
        cached = usage.cached_tokens if usage else 0
        header = Prefix(number, self._fingerprint, packet.layouts, packet.seen, packet.sampled, *sizes, cached)
        transfer.to(State.SENT)
        peer.sending, peer.since = transfer, self._now()
        peer.link.send(header, packet.entries, packet.logits)


def run(
    config: EngineConfig, address: Address, tell: Progress, ready: Callable[[str], None], builder: str = BUILDER
) -> None:
    """Build an engine and serve decode workers until SIGINT or SIGTERM. Port 0 takes a free port.

    ready: receives a sentence when it listens. Raises InvalidRequest without a secret, RingKVError for a taken port,
    EngineDied if one of its ranks has ended.
    """
    secret, identity = key("listen"), Identity.of(config)
    listener = Listener(address, secret, identity)
    try:
        engine: Engine = imported(builder)(config, tell)
        worker = PrefillWorker(engine, identity.fingerprint)
        with _stopped_by_signals(worker):
            listener.start(worker.deliver)
            ready(f"listening for decode workers at {listener.address}; start one with --prefill {listener.address}")
            worker.run()
    except RankEnded as error:
        raise EngineDied(f"the engine has ended: {error}") from error
    finally:
        listener.close()
    ready("stopped")


@contextmanager
def _stopped_by_signals(worker: PrefillWorker) -> Iterator[None]:
    before = {number: signal.signal(number, lambda *_: worker.stop()) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
