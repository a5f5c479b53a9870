"""loads: what clients send, as clients that wait for their answer or as arrivals at a rate."""

from dataclasses import dataclass
from itertools import chain
from random import Random

from bench.peers.workload import prompts
from bench.traffic.engines import Demand
from bench.traffic.traces import PART, Ask, Lengths, arrivals, fitting
from ringkv.text.tokenizer import Tokenizer

PROMPTS, OUTPUTS = (40, 400), (32, 256)  # tokens of `short`, uniform
PIECE, PIECES = 20_000, 12  # tokens that are read from the sources at once, and how often


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


def in_turn(clients: int, each: int) -> Load:
    """Return `short` from so many clients, with `each` requests for each client on average."""
    random = Random(0)
    lengths = (Lengths(0.0, random.randint(*PROMPTS), random.randint(*OUTPUTS)) for _ in range(clients * each))
    return Load("short", tuple(lengths), clients=clients)


def arriving(workload: str, rate: float, seconds: float, need: Demand, shrink: int = 1) -> Load:
    """Return a trace's requests at a rate, without those that are longer than what is needed. Raises NoTrace."""
    requests = arrivals(workload, shrink)(rate, seconds)
    kept = fitting(requests, need.length, need.prompt, need.output)
    return Load(workload, tuple(kept), None, rate, seconds, len(requests) - len(kept), shrink)


class Texts:
    """Stretches of the sources of Python's standard library. A name gives the same stretch in every run."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids = list(chain.from_iterable(prompts(tokenizer, PIECES, PIECE)))

    def stretch(self, name: str, length: int) -> str:
        start = Random(name).randrange(len(self._ids) - length)
        return self._tokenizer.decode(self._ids[start : start + length])

    def ask(self, scope: str, name: str, wanted: Lengths, part: int) -> Ask:
        """Return a request of these lengths. scope: whose requests share parts. part: tokens of each part."""
        prompt = self._prompt(scope, name, wanted, part)
        return Ask(wanted.arrival, prompt, len(self._tokenizer.encode(prompt)), wanted.output)

    def _prompt(self, scope: str, name: str, wanted: Lengths, part: int) -> str:
        if wanted.parts is None:
            return self.stretch(f"{scope}/{name}", wanted.prompt)
        sizes = (min(part, wanted.prompt - part * place) for place in range(len(wanted.parts)))
        return "".join(
            self.stretch(f"{scope}/part {key} of {size}", size)
            for key, size in zip(wanted.parts, sizes, strict=True)
            if size > 0
        )
