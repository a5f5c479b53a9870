"""figures: what clients saw of a load, in one turn and over all turns.

A request meets the objective if its first token comes within `FIRST_S` and its tokens within `TOKEN_S` each, on
average after the first, and if it gets all of its tokens. Goodput is the number of such requests per second: of the
time in which requests arrive, or until the last answer if clients wait for their answers.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.metrics import quantile
from bench.results import table

FIRST_S, TOKEN_S = 2.0, 0.150
MS = 1e-3
EVENTS = 0.8  # of the tokens requested


@dataclass(frozen=True, kw_only=True)
class TrafficCell:
    """One engine under one load. Times are seconds. None: there was no such figure.

    clients: they wait for their answers. per_minute: requests offered, if they do not wait. shrink: the trace's lengths
    were divided by this. settings: of the engine. tokens_per_s: output tokens until the last answer. good_share: of the
    requests sent. ttft, tpot: time to the first token, and per token after it. gap_s: the longest time between two
    events of one answer. clients_cpu_s: of the clients' process in one turn. cache_bytes: what the engine was given.
    why: the reason for missing figures.
    """

    model: str
    workload: str
    engine: str
    settings: str
    shrink: int = 1
    clients: int | None = None
    per_minute: int | None = None
    tokens_per_s: float | None = None
    goodput: float | None = None
    good_share: float | None = None
    ttft_s: float | None = None
    ttft_p99_s: float | None = None
    tpot_s: float | None = None
    tpot_p99_s: float | None = None
    gap_s: float | None = None
    gap_p99_s: float | None = None
    sent_requests: int | None = None
    failed_requests: int | None = None
    clients_cpu_s: float | None = None
    served_s: float | None = None
    cache_bytes: int | None = None
    why: str | None = None
    run: str = ""
    machine: str = ""


@dataclass(frozen=True)
class TrafficTurn:
    """One turn as it is kept in the journal.

    answers: of each answered request its times to the first token and per token. gaps: how many times between events
    were so many milliseconds. window: seconds that goodput is counted in. cpu_s: of the clients.
    """

    window: float
    duration: float
    sent: int
    tokens: int
    answers: list[tuple[float, float]]
    gaps: dict[str, int]
    longest: float
    cpu_s: float
    error: str = ""

    @classmethod
    def of(cls, reply: Mapping[str, Any], wanted: Sequence[int], seconds: float | None) -> "TrafficTurn":
        """Return the turn from the clients' reply. wanted: output tokens requested. seconds: of arrivals."""
        outputs = [_tokens(*each) for each in zip(reply["outputs"], reply["gaps"], wanted, strict=True)]
        rows = list(zip(reply["first"], reply["latencies"], outputs, reply["errors"], wanted, strict=True))
        complete = [row[:3] for row in rows if not row[3] and row[2] == row[4]]
        gaps = [gap for each in reply["gaps"] for gap in each]
        cut = next((f"an answer has {tokens} of {want} tokens" for *_, tokens, _, want in rows if tokens != want), "")
        return cls(
            window=seconds or reply["duration"],
            duration=reply["duration"],
            sent=len(rows),
            tokens=sum(outputs),
            answers=[(first, (latency - first) / max(1, tokens - 1)) for first, latency, tokens in complete],
            gaps={f"{ms}": count for ms, count in Counter(round(gap / MS) for gap in gaps).items()},
            longest=max(gaps, default=0.0),
            cpu_s=reply["cpu_s"],
            error=next((error.strip().splitlines()[-1][:200] for error in reply["errors"] if error), cut),
        )

    @property
    def good(self) -> int:
        return sum(first <= FIRST_S and token <= TOKEN_S for first, token in self.answers)


def _tokens(counted: int | None, gaps: Sequence[float], want: int) -> int:
    """Return an answer's tokens; without the server's count, what was requested if nearly as many events came.

    A character of several tokens comes in one event.
    """
    if counted is not None:
        return counted
    events = len(gaps) + 1
    return want if events >= EVENTS * want else events


def measured(turns: Sequence[TrafficTurn]) -> dict[str, Any]:
    """Return the figures over all turns: percentiles of all answers together, totals over total time."""
    answers = [answer for turn in turns for answer in turn.answers]
    sent = sum(turn.sent for turn in turns)
    good = sum(turn.good for turn in turns)
    gaps = Counter[int]()
    for turn in turns:
        gaps.update({int(ms): count for ms, count in turn.gaps.items()})
    times = {
        f"{name}{place}_s": quantile([answer[column] for answer in answers], share)
        for column, name in enumerate(("ttft", "tpot"))
        for place, share in (("", 0.5), ("_p99", 0.99))
    }
    return times | {
        "tokens_per_s": sum(turn.tokens for turn in turns) / sum(turn.duration for turn in turns),
        "goodput": good / sum(turn.window for turn in turns),
        "good_share": good / sent,
        "gap_s": max(turn.longest for turn in turns),
        "gap_p99_s": quantile([MS * gap for gap in gaps.elements()], 0.99),
        "sent_requests": sent,
        "failed_requests": sent - len(answers),
        "clients_cpu_s": sum(turn.cpu_s for turn in turns) / len(turns),
        "served_s": sum(turn.duration for turn in turns) / len(turns),
        "why": next((turn.error for turn in turns if turn.error), None),
    }


HEAD = (
    "load", "engine", "tokens/s", "goodput/s", "of sent", "first token p50", "p99", "per token p50", "p99",
    "longest gap", "gap p99", "sent", "failed", "clients' CPU",
)  # fmt: skip


def shown(cells: Sequence[TrafficCell]) -> str:
    ordered = sorted(cells, key=lambda cell: (cell.model, cell.workload, cell.clients or 0, cell.per_minute or 0))
    return table(HEAD, list(map(_row, ordered)))


def _row(cell: TrafficCell) -> tuple[str, ...]:
    offered = f"{cell.clients} clients" if cell.clients else f"{(cell.per_minute or 0) / 60:.2f}/s"
    load = f"{cell.workload}{f' / {cell.shrink}' if cell.shrink > 1 else ''}, {offered}"
    if cell.tokens_per_s is None:
        return (load, cell.engine, cell.why or "", *[""] * (len(HEAD) - 3))
    cpu = (cell.clients_cpu_s or 0) / (cell.served_s or 1)
    milliseconds = (cell.tpot_s, cell.tpot_p99_s, cell.gap_s, cell.gap_p99_s)
    return (
        load,
        cell.engine,
        f"{cell.tokens_per_s:,.1f}",
        f"{cell.goodput or 0:.2f}",
        f"{cell.good_share or 0:.0%}",
        *("" if value is None else f"{value:.2f} s" for value in (cell.ttft_s, cell.ttft_p99_s)),
        *("" if value is None else f"{1e3 * value:.0f} ms" for value in milliseconds),
        f"{cell.sent_requests}",
        f"{cell.failed_requests}" + (f" ({cell.why})" if cell.why else ""),
        f"{cpu:.0%} of a core",
    )
