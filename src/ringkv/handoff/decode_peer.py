"""DecodePeer: a decode worker as the prefill worker sees it, and the prompts that it has requested."""

from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from ringkv.handoff.states import Transfer
from ringkv.wire.link import Link

_numbers = count()


class Prefilled(NamedTuple):
    """A prefix that waits in its slot until the link is free."""

    transfer: Transfer
    slot: int


@dataclass(eq=False)
class DecodePeer:
    """name: in messages. sending: the transfer whose prefix is on the way; a link carries one at a time.

    since: when it was sent, in seconds of the worker's clock.
    """

    link: Link
    name: str
    index: int = field(default_factory=lambda: next(_numbers))
    transfers: dict[int, Transfer] = field(default_factory=dict)  # that have had no reply, by number
    prefilled: deque[Prefilled] = field(default_factory=deque)
    sending: Transfer | None = None
    since: float = 0.0

    def request_id(self, number: int) -> str:
        """Return the id of a request in this worker's loop. Other decode workers may use the same numbers."""
        return f"{self.index}:{number}"
