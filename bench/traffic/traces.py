"""traces: arrivals and lengths of recorded traffic, from the folder of real data (`bench.data`).

azure-conv, azure-code   Azure's LLM inference of 2023: arrivals, prompt and output lengths
mooncake                 Mooncake's conversations: also which pieces of prompts are shared
servegen                 ServeGen's request rates and burstiness, with lengths as in ShareGPT
"""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby, islice, pairwise
from math import exp, log
from pathlib import Path
from random import Random
from typing import NamedTuple

from bench.data import DATA

MS = 1e-3
PART = 512  # tokens of one of Mooncake's pieces
WINDOWS = 24  # of ten minutes each, one an hour: a day in the time of one load
EVERY = 6
SHAREGPT = {"prompt": (161, 1.3), "output": (338, 0.9)}
"""Mean tokens, which vLLM's paper (arXiv 2309.06180, figure 11) gives, and the spread of a lognormal distribution."""
LONGEST = 1024  # tokens of a ShareGPT-like prompt or output


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
    if name == "servegen":
        return lambda rate, seconds: _generated(_rates(path), rate, seconds)
    rows = [_shrunk(json.loads(line), shrink) for line in path.read_text(encoding="utf-8").splitlines()]
    return lambda rate, seconds: scaled(rows, rate, seconds)


FILES: Mapping[str, str] = {
    "azure-conv": "azure2023_conv_first600s.jsonl",
    "azure-code": "azure2023_code_first600s.jsonl",
    "mooncake": "mooncake_conversation_le28k_first400.jsonl",
    "servegen": "m-mid_rate.csv",
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


def _rates(path: Path) -> list[tuple[float, float]]:
    """Return the rate and the coefficient of variation between arrivals of each window."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[: WINDOWS * EVERY : EVERY]
    return [(float(row["total_rate_rps"]), float(row["rate_weighted_cv"])) for row in rows]


def _generated(windows: Sequence[tuple[float, float]], rate: float, seconds: float, seed: int = 0) -> list[Lengths]:
    """Return arrivals whose rate and burstiness change as in the windows, with this mean rate.

    The trace has hundreds of requests a second. Of these a share p is taken at random, so that the square of a window's
    coefficient of variation, c, becomes 1 + p (c - 1).
    """
    random, width = Random(seed), seconds / len(windows)
    mean = sum(window for window, _ in windows) / len(windows)
    share, requests = min(1.0, rate / mean), []
    for place, (window, variation) in enumerate(windows):
        shape = 1 / (1 + share * (variation**2 - 1))
        gap = mean / (rate * window)
        arrival = place * width + random.gammavariate(shape, gap / shape)
        while arrival < (place + 1) * width:
            requests.append(Lengths(arrival, *_sharegpt(random)))
            arrival += random.gammavariate(shape, gap / shape)
    return requests


def _sharegpt(random: Random) -> tuple[int, int]:
    prompt, output = (
        min(LONGEST, max(4, round(exp(random.normalvariate(log(mean) - spread**2 / 2, spread)))))
        for mean, spread in SHAREGPT.values()
    )
    return prompt, output
