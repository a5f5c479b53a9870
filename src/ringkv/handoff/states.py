"""states: the life of one prefix, from the request for it to its slot. Both ends of a link follow it.

reserved -> sent -> acknowledged -> inserted
    each but inserted may become dropped
"""

from dataclasses import dataclass
from enum import IntEnum, auto

from ringkv.base.request import Request


class State(IntEnum):
    """State of a prefix, in order. Another transition than the next one or a drop is a bug of the end that makes it."""

    RESERVED = auto()  # its slot is reserved at the decode worker, and its prompt waits or is prefilled
    SENT = auto()  # its bytes are on the way
    ACKNOWLEDGED = auto()  # all have arrived and are valid; the prefill worker's slot is free
    INSERTED = auto()  # it is in its slot
    DROPPED = auto()  # it was cancelled, has failed, or one of the ends was lost


@dataclass(eq=False)
class Transfer:
    """A prefix that a worker requests of another. number: of its `Ask` on their link."""

    number: int
    request: Request
    state: State = State.RESERVED

    def to(self, state: State) -> None:
        """Change the state; in place."""
        may = self.state < State.INSERTED and state in (self.state + 1, State.DROPPED)
        assert may, f"a transfer cannot go from {self.state.name} to {state.name}"
        self.state = state

    def drop(self) -> bool:
        """Drop it, if it is neither inserted nor dropped; in place. Returns whether it was."""
        if self.state >= State.INSERTED:
            return False
        self.to(State.DROPPED)
        return True
