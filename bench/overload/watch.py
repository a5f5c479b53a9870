"""watch: the server's two processes while a load runs: memory, descriptors, tasks, and the queue."""

import asyncio
from dataclasses import dataclass, field

import psutil

from bench.overload.http import metrics

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
        return Resources(
            *(
                int(samples[f"ringkv_{name}"])
                for name in ("slots_free", "staging_lanes_free", "queue_requests", "asyncio_tasks")
            ),
            self.http.num_fds(),
            self.engine.num_fds(),
        )


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
