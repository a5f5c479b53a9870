"""verdict: whether a load was survived: each check's figure beside what is allowed."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import psutil

from bench.metrics import quantile
from bench.overload.clients import Sent
from bench.overload.http import metrics

DELIBERATE = ("queue_full", "deadline_exceeded")  # codes of 503s that are meant
FLAT = 0.05  # growth of a process's memory during the load
LATENESS = 1.2  # p99 between two tokens, over a full step and one chunk
MAXIMA = ("HTTP process", "engine process")

EVERY = 0.5  # seconds between samples


@dataclass(frozen=True)
class Resources:
    """What must be the same before a load and after it."""

    slots_free: int
    lanes_free: int
    queued: int
    tasks: int
    http_files: int
    engine_files: int


@dataclass(frozen=True)
class Processes:
    """The HTTP process and the engine's, which is the larger of its children."""

    http: psutil.Process
    engine: psutil.Process

    @classmethod
    def of(cls, pid: int) -> "Processes":
        http = psutil.Process(pid)
        return cls(http, max(http.children(), key=lambda child: child.memory_info().rss))

    async def resources(self, port: int) -> Resources:
        samples = await metrics(port)
        names = ("slots_free", "staging_lanes_free", "queue_requests", "asyncio_tasks")
        counts = (int(samples[f"ringkv_{name}"]) for name in names)
        return Resources(*counts, self.http.num_fds(), self.engine.num_fds())


@dataclass
class Watch:
    """Samples taken during a load: bytes of each process, requests in the queue."""

    processes: Processes
    port: int
    http_bytes: list[int] = field(default_factory=list)
    engine_bytes: list[int] = field(default_factory=list)
    queued: list[int] = field(default_factory=list)

    async def run(self) -> None:
        """Take samples until it is cancelled."""
        while True:
            self.http_bytes.append(self.processes.http.memory_info().rss)
            self.engine_bytes.append(self.processes.engine.memory_info().rss)
            self.queued.append(int((await metrics(self.port))["ringkv_queue_requests"]))
            await asyncio.sleep(EVERY)


async def settled(processes: Processes, port: int, before: Resources, seconds: float = 20) -> Resources:
    """Return the resources once they are as before, or those after so many seconds."""
    async with asyncio.timeout(seconds + 5):
        for _ in range(int(seconds / EVERY)):
            if (now := await processes.resources(port)) == before:
                return now
            await asyncio.sleep(EVERY)
    return await processes.resources(port)


@dataclass(frozen=True)
class Bounds:
    """step_s, chunk_s: seconds of a decode step of all slots, and of a chunk. *_bytes: of the processes' memory."""

    queue: int
    http_bytes: int
    engine_bytes: int
    step_s: float
    chunk_s: float


@dataclass(frozen=True)
class Run:
    """What happened during the load. queued, http_bytes, engine_bytes: samples."""

    sent: Sequence[Sent]
    wrong: int
    before: Resources
    after: Resources
    queued: Sequence[int]
    http_bytes: Sequence[int]
    engine_bytes: Sequence[int]


@dataclass(frozen=True)
class Check:
    name: str
    measured: str
    allowed: str
    passed: bool


def checks(run: Run, bounds: Bounds) -> Iterator[Check]:
    failures = list(filter(is_failure, run.sent))
    yield Check("5xx except deliberate 503s, lost connections", f"{len(failures)}", "0", not failures)
    malformed = (request for request in run.sent if request.kind == "malform")
    accepted = [request for request in malformed if not 400 <= request.reply.status < 500]
    yield Check("malformed requests without a 4xx", f"{len(accepted)}", "0", not accepted)
    answered = sum(request.kind == "ask" and request.reply.status == 200 for request in run.sent)
    yield Check("answers that differ from the one alone", f"{run.wrong} of {answered:,}", "0", not run.wrong)
    yield Check("leaked: slots, lanes, tasks, descriptors", leaked(run), "none", run.before == run.after)
    queued = max(run.queued, default=0)
    yield Check("requests in the queue, at most", f"{queued}", f"{bounds.queue}", queued <= bounds.queue)
    for name, samples, allowed in (
        (MAXIMA[0], run.http_bytes, bounds.http_bytes),
        (MAXIMA[1], run.engine_bytes, bounds.engine_bytes),
    ):
        peak = max(samples)
        yield Check(f"memory of the {name}", f"{peak / 1e6:,.0f} MB", f"{allowed / 1e6:,.0f} MB", peak <= allowed)
        yield Check(f"growth of the {name}", f"{growth(samples):+.1%}", f"{FLAT:.0%}", growth(samples) <= FLAT)
    late, limit = p99(run.sent), LATENESS * (bounds.step_s + bounds.chunk_s)
    yield Check("p99 between two tokens", f"{late * 1e3:.0f} ms", f"{limit * 1e3:.0f} ms", late <= limit)


def is_failure(sent: Sent) -> bool:
    """Whether a request got something that no load excuses. A client that left may have got nothing."""
    status, code = sent.reply.status, sent.reply.code
    if status == 503:
        return code not in DELIBERATE or "retry-after" not in sent.reply.headers
    return status >= 500 or (sent.kind != "leave" and (status == 0 or sent.error is not None))


def leaked(run: Run) -> str:
    before, after = vars(run.before), vars(run.after)
    changed = [f"{name} {before[name]} -> {after[name]}" for name in before if before[name] != after[name]]
    return ", ".join(changed) or "none"


def growth(samples: Sequence[int]) -> float:
    """Return the last fifth's mean over the second fifth's, less 1. The first fifth warms up."""
    fifth = max(1, len(samples) // 5)
    return fmean(samples[-fifth:]) / fmean(samples[fifth : 2 * fifth] or samples[:1]) - 1


def p99(sent: Sequence[Sent]) -> float:
    """Return the 99th percentile of the seconds between two tokens of one answer."""
    return quantile([gap for request in sent for gap in request.reply.gaps], 0.99) or 0.0
