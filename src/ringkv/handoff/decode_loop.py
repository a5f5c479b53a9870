"""DecodeLoop: the loop of a decode worker. Prompts go to prefill workers and come back as prefixes.

A prompt gets its slot before it is requested, so no prefix arrives without a place. As many may be requested as there
are slots. A place in the queue of requested prompts takes the part of a lane.
"""

from collections.abc import Iterator
from dataclasses import replace
from time import monotonic

from ringkv.base.config import EngineConfig
from ringkv.base.engine import Cached, Engine, Packet
from ringkv.base.events import Event, Failed, Finished, Scored
from ringkv.base.failure import Failure
from ringkv.base.guide import MakeGuide
from ringkv.base.kv import Layouts
from ringkv.base.messages import Stats
from ringkv.base.request import Request
from ringkv.handoff.address import Address
from ringkv.handoff.identity import Identity
from ringkv.handoff.prefill_peer import Arrived
from ringkv.handoff.prefill_peers import PrefillPeers
from ringkv.handoff.shape import PrefixShape
from ringkv.scheduler.loop import Loop
from ringkv.scheduler.scheduler import Scheduler
from ringkv.scheduler.stopwatch import Clock
from ringkv.wire.handshake import key


def decode_loop(engine: Engine, config: EngineConfig, guide: MakeGuide | None = None) -> "DecodeLoop":
    """Return the loop of an engine whose prompts are prefilled at `config.prefill`. Raises InvalidRequest."""
    addresses = [Address.parse(address) for address in config.prefill]
    peers = PrefillPeers(addresses, key("prefill"), Identity.of(config), PrefixShape.of(config))
    return DecodeLoop(engine, peers, guide)


def decode_scheduler(engine: Engine) -> Scheduler:
    """Return the scheduler of an engine whose prompts are prefilled elsewhere: a lane for each slot, and no store."""
    limits = engine.limits
    held = limits.staging_bytes + limits.slots * limits.slot_bytes
    shapes = replace(limits, lanes=limits.slots, staged_entries=0, held_bytes=held, packs=False, rides=False)
    return Scheduler(shapes, engine.default_kv, prefills=False)


class DecodeLoop(Loop):
    def __init__(
        self, engine: Engine, peers: PrefillPeers, guide: MakeGuide | None = None, clock: Clock = monotonic
    ) -> None:
        super().__init__(engine, decode_scheduler(engine), guide, clock)
        self._peers = peers
        self._prefixes: dict[str, Arrived] = {}  # by request; one for each peer at most, since it has one buffer
        self.wakers = (peers.waker.fileno(),)

    @property
    def idle(self) -> bool:
        return super().idle and not self._peers.has_news

    def stats(self) -> Stats:
        return replace(super().stats(), prefill_workers=self._peers.connected)

    def step(self) -> list[Event]:
        """Take what has arrived, then do an action."""
        events = [*self._take_news(), *super().step()]
        for event in events:
            if isinstance(event, Finished | Failed):
                self._drop(event.request_id)
        return events

    def cancel(self, request_id: str) -> list[Event]:
        self._drop(request_id)
        return super().cancel(request_id)

    def begin(self, request: Request, lane: int, entries: range | None) -> Cached:
        """Request a prompt's prefix of a prefill worker."""
        self._peers.ask(replace(request, kv=request.kv or self.engine.default_kv))
        return Cached()

    def select(self, request: Request, lane: int, slot: int) -> Iterator[None]:
        """Do nothing: the prefill worker has selected what it sends."""
        return iter(())

    def insert(self, request: Request, lane: int, slot: int) -> Layouts:
        """Copy a prefix from its peer's buffer to its slot."""
        arrived = self._prefixes.pop(request.id)
        prefix, raw = arrived.prefix, arrived.raw
        self._peers.insert(request.id)
        try:
            entries, logits = raw[: prefix.entries], raw[prefix.entries :]
            packet = Packet(request, prefix.layouts, prefix.seen, prefix.sampled, entries, logits)
            self.engine.restore(packet, slot)
        finally:
            arrived.done()
        return prefix.layouts

    def close(self) -> None:
        """End the links to the prefill workers."""
        self._peers.close()

    def _take_news(self) -> Iterator[Event]:
        while news := self._peers.next_news():
            transfer, what = news
            if transfer is None or not self._peers.is_asked(transfer):
                if isinstance(what, Arrived):
                    what.done()
                continue
            request = transfer.request
            match what:
                case Failure():
                    yield from self.fail(request.id, what)
                case Arrived():
                    self._prefixes[request.id] = what
                    self.arrived(request, Cached(what.prefix.cached, what.prefix.cached))
                case tuple() as logprobs:
                    yield Scored(request.id, logprobs)

    def _drop(self, request_id: str) -> None:
        """Cancel the prefix of a request, whatever its state, if it has a prefix."""
        self._peers.drop(request_id)
        if arrived := self._prefixes.pop(request_id, None):
            arrived.done()
