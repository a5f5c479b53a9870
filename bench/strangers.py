"""strangers: memory of the HTTP process, and how fast others are answered, while strangers send slowly or send much.

    python -m bench.strangers                       500 slow senders and 64 bodies of 64 MiB against SmolLM2
    python -m bench.strangers --seconds 60

A slow sender sends a byte of a header each second and connects again when it is cut off. Two servers are measured in
turn: one with its default bound on a body, which refuses these, and one that takes them (`--max-body 64MiB`). Others
send GET /health and a completion of one token, each on a new connection. Everything goes over loopback.
"""

import argparse
import asyncio
import json
import multiprocessing
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from bench.load import port_of
from bench.results import keep, table

BODY_BYTES, PIECE = 64 << 20, 64 << 10
SERVERS: Mapping[str, Sequence[str]] = {"default": (), "takes them": ("--max-body", "64MiB")}
COMPLETION = {"prompt": "The sea is", "max_tokens": 1, "temperature": 0}
KINDS: Mapping[str, tuple[str, str, bytes | None]] = {
    "health": ("GET", "/health", None),
    "completion": ("POST", "/v1/completions", json.dumps(COMPLETION).encode()),
}
LIMIT_S = 300.0  # seconds after which strangers that have not ended are ended


def main() -> None:
    args = _arguments()
    figures = [figure for name in SERVERS for figure in _measure(name, args)]
    workload = {"model": args.model, "senders": args.senders, "bodies": args.bodies, "body": BODY_BYTES}
    keep("strangers", workload, figures, _table(figures))


def _measure(name: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a figure for each kind of request without strangers, and then with them."""
    with _server(args.model, SERVERS[name]) as (pid, port):
        _ask(port, *KINDS["completion"])  # warms up
        yield from _watched(pid, port, {"server": name, "strangers": "none"}, _Strangers(port, 0, 0, 3))
        strangers = _Strangers(port, args.senders, args.bodies, args.seconds)
        yield from _watched(pid, port, {"server": name, "strangers": "all"}, strangers)


def _watched(pid: int, port: int, case: Mapping[str, str], strangers: "_Strangers") -> Iterator[dict[str, Any]]:
    """Send others' requests until the strangers have ended."""
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with _memory(pid) as sizes, strangers:
        while strangers.are_there:
            for kind, request in KINDS.items():
                seconds[kind].append(_ask(port, *request))
    for kind, taken in seconds.items():
        yield {
            **case,
            "request": kind,
            "seconds": median(taken),
            "slowest_s": max(taken),
            "rss_bytes": max(sizes),
            **strangers.ends,
        }


def _ask(port: int, method: str, path: str, body: bytes | None) -> float:
    """Return the seconds of one request on a connection of its own."""
    started = time.perf_counter()
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
    with connection.getresponse() as response:
        content = response.read()
        assert response.status == 200, content
    connection.close()
    return time.perf_counter() - started


@contextmanager
def _memory(pid: int) -> Iterator[list[int]]:
    """Record the resident memory of a process twenty times a second."""
    process, ended = psutil.Process(pid), threading.Event()
    sizes = [process.memory_info().rss]

    def sample() -> None:
        while not ended.wait(0.05):
            sizes.append(process.memory_info().rss)

    sampling = threading.Thread(target=sample)
    sampling.start()
    try:
        yield sizes
    finally:
        ended.set()
        sampling.join()


class _Strangers:
    """Clients in a process of their own, for some seconds and until all bodies have been sent or refused."""

    def __init__(self, port: int, senders: int, bodies: int, seconds: float) -> None:
        self._end, end = multiprocessing.Pipe()
        self._process = multiprocessing.Process(target=_attack, args=(end, port, senders, bodies, seconds))
        self.ends: dict[str, int] = {}  # bodies by how they ended

    def __enter__(self) -> None:
        self._process.start()
        self._end_by = time.monotonic() + LIMIT_S

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()

    @property
    def are_there(self) -> bool:
        assert time.monotonic() < self._end_by, "the bodies were neither taken nor refused"
        if self._end.poll():
            self.ends = self._end.recv()
        return not self.ends


def _attack(end: Any, port: int, senders: int, bodies: int, seconds: float) -> None:
    """Send the number of bodies that were answered, refused and cut off when all have ended."""
    end.send(asyncio.run(_all(port, senders, bodies, seconds)))


async def _all(port: int, senders: int, bodies: int, seconds: float) -> dict[str, int]:
    slow = [asyncio.create_task(_send_slowly(port)) for _ in range(senders)]
    await asyncio.sleep(min(2, seconds / 2))  # until all are connected
    *statuses, _ = await asyncio.gather(*(_send_body(port) for _ in range(bodies)), asyncio.sleep(seconds))
    for task in slow:
        task.cancel()
    counted = Counter("served" if one == 200 else "refused" if one else "cut" for one in statuses)
    return {f"bodies_{how}": counted[how] for how in ("served", "refused", "cut")}


async def _send_slowly(port: int) -> None:
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nX: ")
            while not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(1)


async def _send_body(port: int) -> int:
    """Return the status of the answer; 0 if the connection ended without one."""
    start = json.dumps({**COMPLETION, "user": ""}).removesuffix('"}').encode()
    lines = ("POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json")
    head = "\r\n".join((*lines, f"Content-Length: {BODY_BYTES}", "", ""))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.create_task(reader.readline())
    with suppress(OSError):
        writer.write(head.encode() + start)
        for _ in range((BODY_BYTES - len(start)) // PIECE):
            writer.write(b"x" * PIECE)
            await writer.drain()
        writer.write(b"x" * ((BODY_BYTES - len(start)) % PIECE - 2) + b'"}')
        await writer.drain()
    line = b""
    with suppress(OSError):
        line = await answer
    writer.close()
    return int(line.split()[1]) if line else 0


@contextmanager
def _server(model: str, options: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield process id and port of a server."""
    ringkv = Path(sys.executable).with_name("ringkv")
    command = [str(ringkv), "serve", "--model", model, "--slots", "2", "--graphs", "off", "--port", "0"]
    log = subprocess.DEVNULL
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=log, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, port_of(process.stdout)
        finally:
            process.terminate()


def _table(figures: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            f"{one['server']}, {one['strangers']}",
            one["request"],
            f"{1e3 * one['seconds']:.0f} ms",
            f"{1e3 * one['slowest_s']:.0f} ms",
            f"{one['rss_bytes'] / 1e6:,.0f} MB",
            f"{one['bodies_served']} / {one['bodies_refused']} / {one['bodies_cut']}",
        )
        for one in figures
    ]
    head = (
        "server, strangers",
        "others' request",
        "median",
        "slowest",
        "memory of HTTP",
        "bodies served / refused / cut",
    )
    return table(head, rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--senders", type=int, default=500)
    parser.add_argument("--bodies", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=30)
    return parser.parse_args()


if __name__ == "__main__":
    main()
