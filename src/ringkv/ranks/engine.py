"""RankedEngine: the verbs of `base.engine` on all ranks. The scheduler sees one engine."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from ringkv.base.engine import Cached, Drafted, Engine, Packet, PrefillChunk, RankBytes, StepTokens
from ringkv.base.errors import InvalidRequest
from ringkv.base.events import TokenLogprob
from ringkv.base.kv import KVChoice, Layouts
from ringkv.base.request import Request
from ringkv.ranks import messages
from ringkv.ranks.group import Group
from ringkv.ranks.packets import PacketParts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class RankedEngine:
    """The first rank's engine, and the group of the others. Each verb is sent to them before it runs here.

    others: bytes of the others' caches.
    """

    def __init__(self, engine: Engine, group: Group, parts: PacketParts, others: Sequence[RankBytes]) -> None:
        self._engine, self._group, self._parts = engine, group, parts
        self.default_kv, self.admit, self.recalled = engine.default_kv, engine.admit, engine.recalled
        first = RankBytes(engine.limits.held_bytes, engine.limits.slot_bytes)
        self.limits = replace(engine.limits, rank_bytes=(first, *others))  # other bytes are those of the first rank

    def begin(self, request: Request, lane: int, entries: range | None = None) -> Cached:
        span = None if entries is None else (entries.start, entries.stop)
        with self._everywhere(messages.Begin(request, lane, span)):
            return self._engine.begin(request, lane, entries)

    def prefill(self, work: Sequence[PrefillChunk], feed: bool = False) -> list[tuple[TokenLogprob, ...]]:
        with self._everywhere(messages.Prefill(tuple((chunk.lane, chunk.start, chunk.stop) for chunk in work), feed)):
            return self._engine.prefill(work, feed)

    def select(self, lane: int, choice: KVChoice, slot: int | None = None) -> Iterator[None]:
        """Do nothing: ranks that exchange votes do all of `compress` together."""
        return iter(())

    def compress(self, lane: int, choice: KVChoice) -> Layouts:
        with self._everywhere(messages.Compress(lane, choice)):
            return self._engine.compress(lane, choice)

    def kept(self, lane: int, choice: KVChoice) -> list["NDArray[np.int64]"]:
        """Return for each layer int64 [H, live] of the first rank's heads."""
        with self._everywhere(messages.Compress(lane, choice)):
            return self._engine.kept(lane, choice)

    def insert(self, lane: int, slot: int, request: Request) -> None:
        with self._everywhere(messages.Insert(lane, slot, replace(request, tokens=()))):
            self._engine.insert(lane, slot, request)

    def export(self, slot: int) -> Packet:
        """Gather the heads of all ranks into the packet of one rank."""
        self._check_local()
        with self._everywhere(messages.Export(slot)):
            packet = self._engine.export(slot)
            parts = [packet.entries, *self._group.receive_each()]
        return packet._replace(entries=self._parts.merged(parts, _live(packet)))

    def restore(self, packet: Packet, slot: int) -> None:
        """Give each rank its heads of a packet of one rank."""
        self._check_local()
        try:
            first, *others = self._parts.split(packet.entries, _live(packet))
        except ValueError as error:
            raise InvalidRequest(f"{error}; take an engine with the same model, dtype and slots") from error
        request, layouts, seen, sampled, _, logits = packet
        verb = messages.Restore(slot, request, layouts, seen, sampled, first, bytes(logits))
        self._group.send_each([replace(verb, entries=entries) for entries in others])
        self._engine.restore(verb.packet, slot)

    def _check_local(self) -> None:
        if not self._group.is_local:
            raise InvalidRequest("requests of several machines cannot be moved; use ranks of one machine", "nnodes")

    def sample(self, forced: Mapping[int, int] | None = None, allowed: Mapping[int, bytes] | None = None) -> StepTokens:
        with self._everywhere(messages.Sample(forced or {}, allowed or {})):
            return self._engine.sample(forced, allowed)

    def forward(self, drafts: Drafted | None = None) -> Mapping[int, int]:
        given = {slot: tuple(tokens) for slot, tokens in (drafts or {}).items() if not isinstance(tokens, int)}
        with self._everywhere(messages.Forward(given)):
            return self._engine.forward(given)

    def leave(self, slot: int, tokens: tuple[int, ...]) -> None:
        with self._everywhere(messages.Leave(slot, tokens)):
            self._engine.leave(slot, tokens)

    def release(self, slot: int) -> None:
        with self._everywhere(messages.Release(slot)):
            self._engine.release(slot)

    def close(self) -> None:
        """End the other ranks."""
        self._group.close()

    @contextmanager
    def _everywhere(self, verb: messages.Verb) -> Iterator[None]:
        """Send a verb to the other ranks. If a rank has ended, raise RankEnded instead of the error that follows."""
        self._group.send(verb)
        try:
            yield
        except RuntimeError:
            self._group.check()
            raise


def _live(packet: Packet) -> list[int]:
    """Return the live entries of each group."""
    return [layout.live(packet.seen) for layout in packet.layouts]
