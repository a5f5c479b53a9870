"""traces: arrivals and lengths of recorded traffic, from the folder of real data (`bench.data`).

azure-conv, azure-code   Azure's LLM inference of 2023: arrivals, prompt and output lengths
mooncake                 Mooncake's conversations: also which pieces of prompts are shared
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby, islice, pairwise
from pathlib import Path
from typing import NamedTuple

from bench.data import DATA

MS = 1e-3
PART = 512  # tokens of one of Mooncake's pieces


@dataclass(frozen=True)
class Lengths:
    """A request's arrival, in seconds since the load began, and its tokens.

    parts: ids of equal pieces of the prompt, in order; requests that share leading ids share text. None: all its own.
    """

    arrival: float
    prompt: int
    output: int
    parts: tuple[int, ...] | None = None


class Ask(NamedTuple):
    """A request as it is sent, at seconds since the load began. tokens: of its prompt."""

    arrival: float
    prompt: str
    tokens: int
    output: int


def fitting(requests: Sequence[Lengths], context: int, prompt: int, output: int) -> list[Lengths]:
    """Return the requests with at most so many tokens of prompt, of output and of both.

    A text's own tokens may differ by a few from the number it was made for, so 2% and 16 tokens stay free.
    """
    return [
        request
        for request in requests
        if request.prompt <= prompt
        and request.output <= output
        and request.prompt * 1.02 + request.output + 16 <= context
    ]


Arrivals = Callable[[float, float], Sequence[Lengths]]
"""(requests per second, seconds) -> the requests that arrive in that time."""


class NoTrace(Exception):
    """The trace is not on this machine; the message says which file is missing."""


def arrivals(name: str, shrink: int = 1, folder: Path = DATA / "traces") -> Arrivals:
    """Return a trace as a function of the rate. shrink: its lengths are divided by this.

    Raises NoTrace.
    """
    path = folder / FILES[name]
    if not path.is_file():
        raise NoTrace(f"{name} is left out: {path} is missing")
    rows = [_shrunk(json.loads(line), shrink) for line in path.read_text(encoding="utf-8").splitlines()]
    return lambda rate, seconds: scaled(rows, rate, seconds)


FILES: Mapping[str, str] = {
    "azure-conv": "azure2023_conv_first600s.jsonl",
    "azure-code": "azure2023_code_first600s.jsonl",
    "mooncake": "mooncake_conversation_le28k_first400.jsonl",
}


def scaled(rows: Sequence[Lengths], rate: float, seconds: float) -> list[Lengths]:
    """Return the first `rate * seconds` requests, squeezed or stretched so that the next one arrives after the end.

    A short trace is repeated from its beginning.
    """
    spread = _spread(rows)
    span = spread[-1].arrival * len(rows) / max(1, len(rows) - 1) or 1.0
    endless = (replace(row, arrival=row.arrival + lap * span) for lap in count() for row in spread)
    *requests, following = islice(endless, max(1, round(rate * seconds)) + 1)
    return [replace(request, arrival=request.arrival * seconds / following.arrival) for request in requests]


def _spread(rows: Sequence[Lengths]) -> list[Lengths]:
    """Spread requests of the same time evenly until the next time, as Mooncake's times are multiples of 3 s."""
    groups = [list(group) for _, group in groupby(rows, lambda row: row.arrival)]
    times = [group[0].arrival for group in groups]
    mean = times[-1] / max(1, len(times) - 1)
    gaps = [after - before for before, after in pairwise([*times, times[-1] + mean])]
    return [
        replace(row, arrival=row.arrival + gap * place / len(group))
        for group, gap in zip(groups, gaps, strict=True)
        for place, row in enumerate(group)
    ]


def _shrunk(row: Mapping[str, object], shrink: int) -> Lengths:
    parts = row.get("hash_ids")
    assert parts is None or isinstance(parts, list)
    milliseconds, prompt, output = (float(str(row[key])) for key in ("timestamp", "input_length", "output_length"))
    # One token of output has no time between tokens.
    return Lengths(
        milliseconds * MS,
        max(1, round(prompt / shrink)),
        max(2, round(output / shrink)),
        None if parts is None else tuple(map(int, parts)),
    )
