"""Messages between the server's process and the engine's: plain data, so that any codec can carry them.

To the engine: Submit, Cancel, Shutdown. From it: Progress any number of times, then Ready; from then on Events and
Stats as they come up. Fatal is the last it says, whenever it comes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ringkv.base.engine import Limits
from ringkv.base.events import Event, Failed, Finished, Scored, Token
from ringkv.base.kv import KVChoice
from ringkv.base.request import Request


@dataclass(frozen=True)
class Submit:
    """Requests with one prompt, which is prefilled once for all."""

    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Cancel:
    request_id: str


@dataclass(frozen=True)
class Shutdown:
    pass


@dataclass(frozen=True)
class Progress:
    """How far building the engine is; the arguments of a `base.progress.Progress`."""

    done: int
    total: int
    what: str


@dataclass(frozen=True)
class Ready:
    limits: Limits
    default_kv: KVChoice


@dataclass(frozen=True)
class Events:
    """All events of one step. Grouped by class: within a step only a request's own order matters, which is this one."""

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
    """Requests by stage, and slots that nobody holds. Sent whenever they change."""

    waiting: int
    prefilling: int
    running: int
    free_slots: int


@dataclass(frozen=True)
class Fatal:
    """The engine could not be built, or broke; `kind` is the error's class name in `base.errors`."""

    kind: str
    message: str


EngineMessage = Submit | Cancel | Shutdown | Progress | Ready | Events | Stats | Fatal
