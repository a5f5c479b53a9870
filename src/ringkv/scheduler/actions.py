"""What a scheduler tells its loop to do, and what comes of it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ringkv.base.engine import PrefillChunk
from ringkv.base.events import Event
from ringkv.base.request import Request


class Begin(NamedTuple):
    """A prompt has got `lane`: see how much of it is known already."""

    request: Request
    lane: int


class Prefill(NamedTuple):
    """Run one chunk; after the last one compress, and insert into `slot`."""

    work: PrefillChunk
    slot: int


class Insert(NamedTuple):
    """The prompt in `lane` is prefilled: insert it into `slot`, compressed under this request's choice."""

    request: Request
    lane: int
    slot: int


class Decode(NamedTuple):
    """Draw the next token of every slot.

    `owners` names who holds each slot as the step starts, None for nobody; `forced`, by slot, tokens that are given.
    """

    owners: tuple[str | None, ...]
    forced: Mapping[int, int]


class Forward(NamedTuple):
    """Feed the tokens sampled last: somebody still runs. `drafts`: by slot, guesses of the tokens that follow."""

    drafts: Mapping[int, Sequence[int]]


class Idle(NamedTuple):
    """Nothing to do until the next submit, or until a held request is released."""


Action = Begin | Prefill | Insert | Decode | Forward | Idle


class Freed(NamedTuple):
    """A slot to release. `seen`: all its tokens, where a later turn is to go on from its entries; else none."""

    slot: int
    seen: tuple[int, ...] = ()


class Outcome(NamedTuple):
    """Events to deliver, and the slots to release."""

    events: list[Event]
    freed: list[Freed]
