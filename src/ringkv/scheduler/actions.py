"""Actions that a scheduler returns to its loop, and their outcome."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ringkv.base.engine import Drafted, PrefillChunk
from ringkv.base.events import Event
from ringkv.base.request import Request


class Begin(NamedTuple):
    """Load the cached prefix of a prompt into its `lane`. entries: of the lane, see `Engine.begin`."""

    request: Request
    lane: int
    entries: range | None = None


class Prefill(NamedTuple):
    """Run chunks of different prompts in one pass. After a prompt's last one, compress and insert it.

    slots: of the chunks, in their order. feed: the pass is also a Forward without drafts.
    """

    work: tuple[PrefillChunk, ...]
    slots: tuple[int, ...]
    feed: bool = False


class Insert(NamedTuple):
    """Compress the prefilled prompt in `lane` under this request's choice, and insert it into `slot`, or go on with it.

    If it takes longer than `Limits.max_step`, it is done in parts.
    """

    request: Request
    lane: int
    slot: int


class Decode(NamedTuple):
    """Sample the next token of every slot.

    owners: by slot, the request that has it when the step starts; None for a free slot. forced: by slot, the tokens
    that are taken instead of sampling.
    """

    owners: tuple[str | None, ...]
    forced: Mapping[int, int]


class Forward(NamedTuple):
    """Feed the tokens sampled last. `drafts`: see `Engine.forward`. Report its end: `fed`."""

    drafts: Drafted


class Idle(NamedTuple):
    """Do nothing: no work exists before the next submit or the release of a held request."""


Action = Begin | Prefill | Insert | Decode | Forward | Idle


class Freed(NamedTuple):
    """A slot to release. `seen`: all its tokens if a later turn may continue from its entries; else empty."""

    slot: int
    seen: tuple[int, ...] = ()


class Outcome(NamedTuple):
    """Events to deliver, and the slots to release."""

    events: list[Event]
    freed: list[Freed]

    @classmethod
    def joined(cls, outcomes: Iterable["Outcome"]) -> "Outcome":
        joined = cls([], [])
        for events, freed in outcomes:
            joined.events.extend(events)
            joined.freed.extend(freed)
        return joined
