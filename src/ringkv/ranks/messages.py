"""Messages from the first rank to the others: each is a verb of `base.engine`, as plain data.

All ranks run the same verbs in the same order. A prompt's tokens are sent once, when its lane begins.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from socket import socket
from typing import get_args

from ringkv.base.engine import Engine, Packet, PrefillChunk, RankBytes
from ringkv.base.failure import Failure
from ringkv.base.kv import KVChoice, Layouts
from ringkv.base.request import Request
from ringkv.wire.handshake import Hello, Welcome
from ringkv.wire.link import LARGEST, Codec, Link

Lanes = dict[int, Request]
"""The request whose prompt is in each lane."""


@dataclass(frozen=True)
class Begin:
    request: Request
    lane: int
    entries: tuple[int, int] | None

    def run(self, engine: Engine, lanes: Lanes) -> None:
        lanes[self.lane] = self.request
        engine.begin(self.request, self.lane, None if self.entries is None else range(*self.entries))


@dataclass(frozen=True)
class Prefill:
    """chunks: (lane, start, stop) of each."""

    chunks: tuple[tuple[int, int, int], ...]
    feed: bool

    def run(self, engine: Engine, lanes: Lanes) -> None:
        engine.prefill([PrefillChunk(lanes[lane], lane, start, stop) for lane, start, stop in self.chunks], self.feed)


class _Same:
    """A verb with the arguments of the engine's method of this name."""

    def run(self, engine: Engine, lanes: Lanes) -> None:
        getattr(engine, type(self).__name__.lower())(**vars(self))


@dataclass(frozen=True)
class Compress(_Same):
    lane: int
    choice: KVChoice


@dataclass(frozen=True)
class Insert:
    """request: its tokens are those of the lane."""

    lane: int
    slot: int
    request: Request

    def run(self, engine: Engine, lanes: Lanes) -> None:
        engine.insert(self.lane, self.slot, replace(self.request, tokens=lanes[self.lane].tokens))


@dataclass(frozen=True)
class Sample(_Same):
    forced: Mapping[int, int]
    allowed: Mapping[int, bytes]


@dataclass(frozen=True)
class Forward(_Same):
    drafts: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True)
class Leave(_Same):
    slot: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Export:
    """The only verb that is replied to: with the bytes of the rank's entries."""

    slot: int

    def run(self, engine: Engine, lanes: Lanes) -> bytes | memoryview:
        return engine.export(self.slot).entries


@dataclass(frozen=True)
class Restore:
    """The fields of a `base.engine.Packet`. entries: those of the rank."""

    slot: int
    request: Request
    layouts: Layouts
    seen: int
    sampled: Mapping[int, int]
    entries: bytes
    logits: bytes

    def run(self, engine: Engine, lanes: Lanes) -> None:
        engine.restore(self.packet, self.slot)

    @property
    def packet(self) -> Packet:
        return Packet(self.request, self.layouts, self.seen, self.sampled, self.entries, self.logits)


@dataclass(frozen=True)
class Release(_Same):
    slot: int


@dataclass(frozen=True)
class Stop:
    """The end of a rank."""


@dataclass(frozen=True)
class Built:
    """A rank's last message: its engine is ready, or why it could not be built. bytes: of its cache."""

    failure: Failure | None = None
    bytes: RankBytes = RankBytes(0, 0)  # noqa: RUF009 - frozen


Verb = Begin | Prefill | Compress | Insert | Export | Restore | Sample | Forward | Leave | Release
RankMessage = Verb | Stop | Built
CODEC = Codec(Hello, Welcome, *get_args(RankMessage))


ANY_SIZE = 1 << 62  # bytes of a message within a machine: the entries of a slot may take many gigabytes


def link_of(end: socket, largest: int = LARGEST) -> Link:
    """Return a rank's link."""
    return Link(end, CODEC, largest)
