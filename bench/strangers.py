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
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from bench.arguments import command_line
from bench.results import keep, table
from bench.serving import ServingProcess, ask, serving

BODY_BYTES, PIECE = 64 << 20, 64 << 10
SERVERS: Mapping[str, Sequence[str]] = {"default": (), "takes them": ("--max-body", "64MiB")}
COMPLETION = {"prompt": "The sea is", "max_tokens": 1, "temperature": 0}
KINDS: Mapping[str, tuple[str, str, bytes | None]] = {
    "health": ("GET", "/health", None),
    "completion": ("POST", "/v1/completions", json.dumps(COMPLETION).encode()),
}
LIMIT_S = 300.0  # seconds after which strangers that have not ended are ended


def main() -> None:
    args = command_line(__doc__, model="smollm2", senders=500, bodies=64, seconds=30.0).parse_args()
    figures = [figure for name in SERVERS for figure in _measure(name, args)]
    workload = {"model": args.model, "senders": args.senders, "bodies": args.bodies, "body": BODY_BYTES}
    keep("strangers", workload, figures, _table(figures))


def _measure(name: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a figure for each kind of request without strangers, and then with them."""
    with serving("--model", args.model, "--slots", 2, "--graphs", "off", *SERVERS[name]) as server:
        _seconds(server.port, *KINDS["completion"])  # warms up
        yield from _watched(server, {"server": name, "strangers": "none"}, 0, 0, 3)
        yield from _watched(server, {"server": name, "strangers": "all"}, args.senders, args.bodies, args.seconds)


def _watched(
    server: ServingProcess, case: Mapping[str, str], senders: int, bodies: int, seconds: float
) -> Iterator[dict[str, Any]]:
    """Send others' requests until the strangers, in a process of their own, have ended."""
    taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with ProcessPoolExecutor(1) as pool:
        strangers = pool.submit(_attack, server.port, senders, bodies, seconds)
        while not strangers.done():
            for kind, request in KINDS.items():
                taken[kind].append(_seconds(server.port, *request))
    for kind, times in taken.items():
        sizes = {"rss_bytes": _peak_bytes(server.pid), **strangers.result()}
        yield {**case, "request": kind, "seconds": median(times), "slowest_s": max(times), **sizes}


def _peak_bytes(pid: int) -> int:
    """Return the peak of a process's resident memory since it started."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


def _seconds(port: int, method: str, path: str, body: bytes | None) -> float:
    """Return the seconds of a request on a connection of its own."""
    started = time.perf_counter()
    status, content = ask(port, method, path, body)
    assert status == 200, content
    return time.perf_counter() - started


def _attack(port: int, senders: int, bodies: int, seconds: float) -> dict[str, int]:
    """Return the number of bodies that were answered, refused and cut off, when all have ended.

    Raises TimeoutError if some are neither taken nor refused.
    """
    return asyncio.run(asyncio.wait_for(_all(port, senders, bodies, seconds), LIMIT_S))


async def _all(port: int, senders: int, bodies: int, seconds: float) -> dict[str, int]:
    slow = [asyncio.create_task(_send_slowly(port)) for _ in range(senders)]
    await asyncio.sleep(min(2, seconds / 2))  # until all are connected
    *statuses, _ = await asyncio.gather(*(_send_body(port) for _ in range(bodies)), asyncio.sleep(seconds))
    for task in slow:
        task.cancel()
    counted = Counter("served" if status == 200 else "refused" if status else "cut" for status in statuses)
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


def _table(figures: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            f"{figure['server']}, {figure['strangers']}",
            figure["request"],
            f"{1e3 * figure['seconds']:.0f} ms",
            f"{1e3 * figure['slowest_s']:.0f} ms",
            f"{figure['rss_bytes'] / 1e6:,.0f} MB",
            f"{figure['bodies_served']} / {figure['bodies_refused']} / {figure['bodies_cut']}",
        )
        for figure in figures
    ]
    head = ("server, strangers", "others' request", "median", "slowest", "memory of HTTP", "bodies served/refused/cut")
    return table(head, rows)


if __name__ == "__main__":
    main()
