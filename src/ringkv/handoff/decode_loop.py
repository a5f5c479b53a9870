"""DecodeLoop: the loop of a decode worker. Prompts go to prefill workers and come back as prefixes."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from time import monotonic

from ringkv.base.config import EngineConfig
from ringkv.base.engine import Cached, Engine, Packet
from ringkv.base.events import Event, Failed, Finished, Scored
from ringkv.base.guide import MakeGuide
from ringkv.base.messages import Stats
from ringkv.base.request import Request
from ringkv.handoff.address import Address
from ringkv.handoff.decode_scheduler import DecodeScheduler
from ringkv.handoff.identity import Identity
from ringkv.handoff.prefill_peer import Arrived, Lost, Scores
from ringkv.handoff.prefill_peers import PrefillPeers
from ringkv.handoff.resting_loop import RestingLoop
from ringkv.handoff.shape import PrefixShape
from ringkv.ranks.rendezvous import key
from ringkv.scheduler.actions import Outcome
from ringkv.scheduler.stopwatch import Clock

PATIENCE = 0.01  # seconds between two looks at deadlines and guides


def decode_loop(engine: Engine, config: EngineConfig, guide: MakeGuide | None = None) -> "DecodeLoop":
    """Return the loop of an engine whose prompts are prefilled at `config.prefill`. Raises InvalidRequest."""
    addresses = [Address.parse(one) for one in config.prefill]
    peers = PrefillPeers(addresses, key("prefill"), Identity.of(config), PrefixShape.of(config))
    return DecodeLoop(engine, peers, guide)


class DecodeLoop(RestingLoop):
    def __init__(
        self, engine: Engine, peers: PrefillPeers, guide: MakeGuide | None = None, clock: Clock = monotonic
    ) -> None:
        self._slots = DecodeScheduler(engine.limits, engine.default_kv)
        super().__init__(engine, self._slots, guide, clock)
        self._peers = peers
        self._arrived: deque[Arrived] = deque()  # one for each peer at most, since it has one buffer
        self.wakers = (peers.waker.fileno(),)

    @property
    def idle(self) -> bool:
        return super().idle and not (self._peers.has_news or self._arrived)

    @property
    def patience(self) -> float | None:
        return PATIENCE if self.has_requests else None

    def stats(self) -> Stats:
        return replace(super().stats(), prefill_workers=self._peers.connected)

    def step(self) -> list[Event]:
        """Take what has arrived, insert at most one prefix, then do one action."""
        events = [*self._take_news()]
        if self._arrived and self._slots.may_insert:
            events += self._insert_prefix(self._arrived.popleft())
        return [*events, *super().step()]

    def close(self) -> None:
        """End the links to the prefill workers."""
        self._peers.close()

    def _take_news(self) -> Iterator[Event]:
        while news := self._peers.next_news():
            match news:
                case Arrived():
                    self._arrived.append(news)
                case Scores(transfer, logprobs) if self._peers.is_asked(transfer):
                    yield Scored(transfer.request.id, logprobs)
                case Lost(transfer, failure) if self._peers.is_asked(transfer):
                    yield from self._settle(self._scheduler.failed(transfer.request.id, failure))

    def _begin(self, request: Request, lane: int, entries: range | None) -> list[Event]:
        self._watch.begin(request.id, lane)
        try:
            self._peers.ask(replace(request, kv=request.kv or self._engine.default_kv))
        except Exception as error:
            return self._fail(request, error)
        self._scheduler.begun(request, Cached())
        return []

    def _insert_prefix(self, arrived: Arrived) -> list[Event]:
        """Copy a prefix from its peer's buffer to its slot."""
        prefix, request_id = arrived.prefix, arrived.transfer.request.id
        if not self._peers.insert(arrived):
            arrived.done()
            return []
        request, slot, lane = self._slots.reserved(request_id)
        self._watch.prefilled(lane)
        self._watch.insert(request_id, lane)
        entries, logits = arrived.raw[: prefix.entries], arrived.raw[prefix.entries :]
        try:
            packet = Packet(request, prefix.layouts, prefix.seen, prefix.sampled, entries, logits)
            self._engine.restore(packet, slot)
        except Exception as error:
            return self._fail(request, error)
        finally:
            arrived.done()
        self._slots.arrived(request_id, prefix.layouts, prefix.cached)
        self.wake()
        return []

    def _settle(self, outcome: Outcome) -> list[Event]:
        for event in outcome.events:
            if isinstance(event, Finished | Failed):
                self._peers.drop(event.request_id)
        return super()._settle(outcome)

    def _leave(self, slot: int, seen: tuple[int, ...]) -> None:
        """Save nothing: a conversation's next turn is prefilled elsewhere."""
