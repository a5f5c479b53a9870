"""states: the life of one prefix, from the request for it to its slot. Both ends of a link follow this table.

reserved -> sent -> acknowledged -> inserted
    each but inserted may become dropped
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from ringkv.base.request import Request


class State(Enum):
    """State of a prefix. A transition outside `NEXT` is a bug of the end that makes it."""

    RESERVED = auto()  # its slot is reserved at the decode worker, and its prompt waits or is prefilled
    SENT = auto()  # its bytes are on the way
    ACKNOWLEDGED = auto()  # all have arrived and are valid; the prefill worker's slot is free
    INSERTED = auto()  # it is in its slot
    DROPPED = auto()  # it was cancelled, has failed, or one of the ends was lost


NEXT: Mapping[State, frozenset[State]] = {
    State.RESERVED: frozenset({State.SENT, State.DROPPED}),
    State.SENT: frozenset({State.ACKNOWLEDGED, State.DROPPED}),
    State.ACKNOWLEDGED: frozenset({State.INSERTED, State.DROPPED}),
    State.INSERTED: frozenset(),
    State.DROPPED: frozenset(),
}


@dataclass(eq=False)
class Transfer:
    """A prefix that a worker requests of another. number: of its `Ask` on their link."""

    number: int
    request: Request
    state: State = State.RESERVED

    def to(self, state: State) -> None:
        """Change the state; in place."""
        assert state in NEXT[self.state], f"a transfer cannot go from {self.state.name} to {state.name}"
        self.state = state

    def drop(self) -> bool:
        """Drop it, if it is neither inserted nor dropped; in place. Returns whether it was."""
        if State.DROPPED not in NEXT[self.state]:
            return False
        self.to(State.DROPPED)
        return True
