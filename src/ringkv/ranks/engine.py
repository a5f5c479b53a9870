"""RankedEngine: the verbs of `base.engine` on all ranks. The scheduler sees one engine."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from ringkv.base.engine import Cached, Engine, Limits, Packet, PrefillChunk, Step
from ringkv.base.errors import InvalidRequest
from ringkv.base.events import TokenLogprob
from ringkv.base.kv import KVChoice, Layouts
from ringkv.base.request import Request
from ringkv.ranks.group import Group
from ringkv.ranks.messages import Begin, Compress, Forward, Insert, Leave, Prefill, Release, Sample, Verb

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class RankedEngine:
    """The first rank's engine, and the group of the others. Each verb is sent to them before it runs here."""

    def __init__(self, engine: Engine, group: Group) -> None:
        self._engine, self._group = engine, group

    @property
    def limits(self) -> Limits:
        """The limits of all ranks. Bytes are those of the first rank, with its share of the slots."""
        return self._engine.limits

    @property
    def default_kv(self) -> KVChoice:
        return self._engine.default_kv

    def admit(self, request: Request) -> None:
        self._engine.admit(request)

    def begin(self, request: Request, lane: int, entries: range | None = None) -> Cached:
        with self._everywhere(Begin(request, lane, None if entries is None else (entries.start, entries.stop))):
            return self._engine.begin(request, lane, entries)

    def prefill(self, work: Sequence[PrefillChunk], feed: bool = False) -> list[tuple[TokenLogprob, ...]]:
        with self._everywhere(Prefill(tuple((one.lane, one.start, one.stop) for one in work), feed)):
            return self._engine.prefill(work, feed)

    def compress(self, lane: int, choice: KVChoice) -> Layouts:
        with self._everywhere(Compress(lane, choice)):
            return self._engine.compress(lane, choice)

    def kept(self, lane: int, choice: KVChoice) -> list["NDArray[np.int64]"]:
        """Return for each layer int64 [H, live] of the first rank's heads."""
        with self._everywhere(Compress(lane, choice)):
            return self._engine.kept(lane, choice)

    def insert(self, lane: int, slot: int, request: Request) -> None:
        with self._everywhere(Insert(lane, slot, replace(request, tokens=()))):
            self._engine.insert(lane, slot, request)

    def export(self, slot: int) -> Packet:
        raise InvalidRequest("requests of several ranks cannot be exported yet; use one rank", "tensor_parallel")

    def restore(self, packet: Packet, slot: int) -> None:
        raise InvalidRequest("requests cannot be restored on several ranks yet; use one rank", "tensor_parallel")

    def sample(self, forced: Mapping[int, int] | None = None, allowed: Mapping[int, bytes] | None = None) -> Step:
        with self._everywhere(Sample(forced or {}, allowed or {})):
            return self._engine.sample(forced, allowed)

    def forward(self, drafts: Mapping[int, Sequence[int]] | None = None) -> None:
        with self._everywhere(Forward({slot: tuple(tokens) for slot, tokens in (drafts or {}).items()})):
            self._engine.forward(drafts)

    def leave(self, slot: int, tokens: tuple[int, ...]) -> None:
        with self._everywhere(Leave(slot, tokens)):
            self._engine.leave(slot, tokens)

    def release(self, slot: int) -> None:
        with self._everywhere(Release(slot)):
            self._engine.release(slot)

    def close(self) -> None:
        """End the other ranks."""
        self._group.close()

    @contextmanager
    def _everywhere(self, verb: Verb) -> Iterator[None]:
        """Send a verb to the other ranks. If one has ended, raise RankEnded instead of the error that follows."""
        self._group.send(verb)
        try:
            yield
        except RuntimeError:
            self._group.check()
            raise
