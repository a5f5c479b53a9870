"""What a scheduler tells its loop to do, and what comes of it."""

from typing import NamedTuple

from ringkv.base.engine import Work
from ringkv.base.events import Event


class Prefill(NamedTuple):
    """Run one chunk; after the last one compress, and insert into `slot`."""

    work: Work
    slot: int


class Decode(NamedTuple):
    """Draw the next token of every slot; `owners` names who holds each slot as the step starts, None for nobody."""

    owners: tuple[str | None, ...]


class Forward(NamedTuple):
    """Feed the tokens drawn last: somebody still runs."""


class Idle(NamedTuple):
    """Nothing to do until the next submit."""


Action = Prefill | Decode | Forward | Idle


class Outcome(NamedTuple):
    """Events to deliver, and the slots to release."""

    events: list[Event]
    freed: list[int]
