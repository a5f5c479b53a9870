"""loads: what clients send, as clients that wait for their answer or as arrivals at a rate."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from bench.traffic.asks import Lengths, fitting
from bench.traffic.traces import PART, Arrivals, arrivals, poisson

PROMPTS, OUTPUTS = (40, 400), (32, 256)  # tokens of `short`, uniform


@dataclass(frozen=True)
class Load:
    """One load. clients: each sends its next request when its last is answered; None: requests arrive at their times.

    rate: requests offered per second; None with clients. seconds: in which requests arrive; None with clients.
    dropped: requests that are left out, because they are too long. shrink: the lengths were divided by this.
    """

    workload: str
    asks: tuple[Lengths, ...]
    clients: int | None = None
    rate: float | None = None
    seconds: float | None = None
    dropped: int = 0
    shrink: int = 1

    @property
    def part(self) -> int:
        """Tokens of a shared piece of a prompt."""
        return max(1, PART // self.shrink)

    @property
    def name(self) -> str:
        return f"{self.workload}, " + (f"{self.clients} clients" if self.clients else f"{self.rate:g} requests/s")


@dataclass(frozen=True)
class Limits:
    """Tokens of the longest prompt, of the longest output, and of both."""

    context: int
    prompt: int
    output: int


def in_turn(clients: int, each: int) -> Load:
    """Return `short` from so many clients, with `each` requests for each client on average."""
    random = Random(0)
    return Load("short", tuple(Lengths(0.0, *_short(random)) for _ in range(clients * each)), clients=clients)


def arriving(workload: str, rate: float, seconds: float, limits: Limits, shrink: int = 1) -> Load:
    """Return a workload's requests at a rate. Raises NoTrace."""
    found = _source(workload, shrink)(rate, seconds)
    kept = fitting(found, limits.context, limits.prompt, limits.output)
    return Load(workload, tuple(kept), None, rate, seconds, len(found) - len(kept), shrink)


def _source(workload: str, shrink: int) -> Arrivals:
    own = OWN.get(workload)
    return own() if own else arrivals(workload, shrink)


def _short(random: Random) -> tuple[int, int]:
    return random.randint(*PROMPTS), random.randint(*OUTPUTS)


OWN: Mapping[str, Callable[[], Arrivals]] = {
    "short": lambda: lambda rate, seconds: poisson(rate, seconds, _short),
}
