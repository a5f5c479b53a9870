"""Messages between the server's process and the engine's. They are plain data, so any codec can carry them.

To the engine: Submit, Cancel, Watch, FetchKept, Shutdown. From it: Progress any number of times, then Ready, then
Events, Stats, EngineMetrics, Occupancy while somebody watches, and a KeptReply for each FetchKept. Fatal may come any
time, and is always the last message.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ringkv.base.engine import Limits
from ringkv.base.events import Event, Failed, Finished, Scored, Token
from ringkv.base.histogram import Histogram
from ringkv.base.kv import KVChoice, Layout
from ringkv.base.request import Request


@dataclass(frozen=True)
class Submit:
    """Requests that share one prompt, which is prefilled once."""

    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Cancel:
    request_id: str


@dataclass(frozen=True)
class Watch:
    """Whether the engine sends `Occupancy`. It sends none before the first of these."""

    on: bool


@dataclass(frozen=True)
class FetchKept:
    """Requests the kept tokens of a request with `trace`; `KeptReply` answers with the same number.

    name: its id, without that of an HTTP request.
    """

    number: int
    name: str


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
        return iter((*self.scored, *self.tokens, *self.finished, *self.failed))


@dataclass(frozen=True)
class Stats:
    """Requests by stage, free slots and free staging lanes. Sent whenever they change.

    free_lanes: a lane is taken and freed together with another change, so it is not compared.
    prefill_workers: those that are connected, or None if the engine prefills its prompts itself.
    """

    waiting: int
    prefilling: int
    running: int
    free_slots: int
    free_lanes: int = field(default=0, compare=False)
    prefill_workers: int | None = None


STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
PROMPT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)


@dataclass(frozen=True)
class EngineMetrics:
    """What the engine has measured since its start, in seconds. Sent a few times a second at most, and when it is idle.

    queue: of a request, from its submission until its prefill begins; of a later answer to a prefilled prompt, until
    it gets its slot. prefill: of a prompt, from its first chunk to its last, with the decode steps between them.
    compress: of one prompt under one choice, with the decode steps between its parts. step: sampling and forward pass
    of all slots.
    service: moving average of the time that a request holds its slot, prefill included; 0 before the first has ended.
    not_finite: requests that failed because their logits were not finite. prefilled: prompt tokens.
    """

    queue: Histogram = Histogram.of(PROMPT_SECONDS)  # noqa: RUF009 - frozen
    prefill: Histogram = Histogram.of(PROMPT_SECONDS)  # noqa: RUF009 - frozen
    compress: Histogram = Histogram.of(STEP_SECONDS)  # noqa: RUF009 - frozen
    step: Histogram = Histogram.of(STEP_SECONDS)  # noqa: RUF009 - frozen
    service: float = 0.0
    not_finite: int = 0
    prefilled: int = 0


@dataclass(frozen=True)
class PromptState:
    """A prompt in its lane. prefilled: how many of its tokens are, cached ones included."""

    id: str
    tokens: int
    prefilled: int


@dataclass(frozen=True)
class SlotState:
    """A slot in use. Its last fields are those of its `Layout`.

    seen: tokens that have had an entry. live: entries that hold a token. bytes: of its memory on all ranks. again:
    entries that are filled again and again once the slot is full.
    """

    slot: int
    id: str
    policy: str
    prompt: int
    seen: int
    live: int
    sinks: int
    selected: int
    protected: int
    base: int
    ring: int
    again: int
    capacity: int
    bytes: int


@dataclass(frozen=True)
class Occupancy:
    """What the engine holds between two steps. prompts: in prefill. slots: those of running requests.

    Sent while somebody watches, when it has changed, at most 4 times a second.
    """

    prompts: tuple[PromptState, ...] = ()
    slots: tuple[SlotState, ...] = ()


@dataclass(frozen=True)
class KeptTokens:
    """Which prompt tokens a request's slot held at the end of prefill.

    owner: of the request. tokens: n, of its prompt. heads: key-value heads of each layer, H of all together; with
    ranks, those of the first one. bits: H rows of n bits in whole bytes, the highest bit of each first, layer by layer;
    None if every token was kept. layout: that of its choice.
    """

    owner: str
    tokens: int
    heads: tuple[int, ...]
    policy: str
    layout: Layout
    bits: bytes | None


@dataclass(frozen=True)
class KeptReply:
    """found: None if nothing is remembered of the request."""

    number: int
    found: KeptTokens | None


@dataclass(frozen=True)
class Fatal:
    """The engine could not be built or failed; `kind` is the error's class name in `base.errors`."""

    kind: str
    message: str


ToEngine = Submit | Cancel | Watch | FetchKept | Shutdown
EngineMessage = ToEngine | Progress | Ready | Events | Stats | EngineMetrics | Occupancy | KeptReply | Fatal
