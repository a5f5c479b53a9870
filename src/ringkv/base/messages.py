"""Messages between the server's process and the engine's. They are plain data, so any codec can carry them.

To the engine: Submit, Cancel, Shutdown. From it: Progress any number of times, then Ready, then Events and Stats.
Fatal may come at any time and is always the last message.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ringkv.base.engine import Limits
from ringkv.base.events import Event, Failed, Finished, Scored, Token
from ringkv.base.kv import KVChoice
from ringkv.base.request import Request


@dataclass(frozen=True)
class Submit:
    """Requests that share one prompt, which is prefilled once."""

    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Cancel:
    request_id: str


@dataclass(frozen=True)
class Shutdown:
    pass


@dataclass(frozen=True)
class Progress:
    """Progress of building the engine; the arguments of a `base.progress.Progress`."""

    done: int
    total: int
    what: str


@dataclass(frozen=True)
class Ready:
    limits: Limits
    default_kv: KVChoice


@dataclass(frozen=True)
class Events:
    """All events of one step, grouped by class. This keeps the order within a request, the only one that matters."""

    scored: tuple[Scored, ...] = ()
    tokens: tuple[Token, ...] = ()
    finished: tuple[Finished, ...] = ()
    failed: tuple[Failed, ...] = ()

    @classmethod
    def of(cls, events: Iterable[Event]) -> "Events":
        events = tuple(events)
        return cls(
            scored=tuple(event for event in events if isinstance(event, Scored)),
            tokens=tuple(event for event in events if isinstance(event, Token)),
            finished=tuple(event for event in events if isinstance(event, Finished)),
            failed=tuple(event for event in events if isinstance(event, Failed)),
        )

    def __iter__(self) -> Iterator[Event]:
        yield from self.scored
        yield from self.tokens
        yield from self.finished
        yield from self.failed


@dataclass(frozen=True)
class Stats:
    """Requests by stage, and free slots. Sent whenever they change."""

    waiting: int
    prefilling: int
    running: int
    free_slots: int


@dataclass(frozen=True)
class Fatal:
    """The engine could not be built or failed; `kind` is the error's class name in `base.errors`."""

    kind: str
    message: str


EngineMessage = Submit | Cancel | Shutdown | Progress | Ready | Events | Stats | Fatal
