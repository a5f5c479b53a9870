"""http: a client that is small enough not to disturb the server beside it, and that notes when each token arrives.

It speaks HTTP/1.0, so an answer ends with its connection and is not in chunks.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

HOST = "127.0.0.1"


@dataclass
class Reply:
    """status: 0 if the connection ended before one. arrivals: when each event with a token arrived.

    complete: the body ended as it should, with its length or with [DONE].
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    text: str = ""
    arrivals: list[float] = field(default_factory=list)
    complete: bool = False

    @property
    def gaps(self) -> list[float]:
        """Seconds between tokens."""
        return [after - before for before, after in zip(self.arrivals, self.arrivals[1:], strict=False)]

    @property
    def code(self) -> str | None:
        """The error's code, if the body is an error."""
        with suppress(ValueError, KeyError, TypeError):
            return json.loads(self.body)["error"]["code"]
        return None


async def send(port: int, path: str, body: bytes | Mapping[str, Any] | None = None) -> Reply:
    """Send a request and return the whole reply. None sends a GET."""
    reply = Reply()
    async with _sent(port, path, body) as reader:
        await _read(reader, reply)
    return reply


async def send_and_leave(port: int, path: str, body: Mapping[str, Any], events: int, seconds: float) -> Reply:
    """Send a request, and disconnect after so many events or seconds. Returns what has arrived by then."""
    reply = Reply()
    async with _sent(port, path, body) as reader:
        with suppress(TimeoutError):
            await asyncio.wait_for(_read(reader, reply, events), seconds)
    return reply


@asynccontextmanager
async def _sent(port: int, path: str, body: bytes | Mapping[str, Any] | None) -> AsyncIterator[asyncio.StreamReader]:
    """Connect, send and yield the reader. The connection is cut at the end of the block."""
    reader, writer = await asyncio.open_connection(HOST, port, limit=1 << 22)
    try:
        writer.write(_request(path, body))
        await writer.drain()
        yield reader
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def _request(path: str, body: bytes | Mapping[str, Any] | None) -> bytes:
    host = f"Host: {HOST}\r\n"
    if body is None:
        return f"GET {path} HTTP/1.0\r\n{host}\r\n".encode()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.0\r\n{host}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def _read(reader: asyncio.StreamReader, reply: Reply, events: int | None = None) -> None:
    """Fill in the reply, up to so many events."""
    with suppress(OSError, asyncio.IncompleteReadError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        reply.status = int(head[0].split()[1])
        reply.headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
        if reply.headers.get("content-type", "").startswith("text/event-stream"):
            await _read_events(reader, reply, events)
        else:
            reply.body = await reader.readexactly(int(reply.headers.get("content-length", 0)))
            reply.complete = True


async def _read_events(reader: asyncio.StreamReader, reply: Reply, events: int | None) -> None:
    while line := await reader.readline():
        if line == b"data: [DONE]\n":
            reply.complete = True
        elif line.startswith(b"data: "):
            reply.body = line[6:]
            reply.text += _text(reply.body)
            reply.arrivals.append(perf_counter())
            if events is not None and len(reply.arrivals) >= events:
                return


def answer(reply: Reply) -> str:
    """Return the text of a completion, streamed or not."""
    return reply.text or _text(reply.body)


def _text(body: bytes) -> str:
    """Return the text of a completion or of its next event; empty for an error."""
    return "".join(choice["text"] for choice in json.loads(body).get("choices", ()))


async def metrics(port: int) -> dict[str, float]:
    """Return the samples of /metrics by name; those of a name that has several are added."""
    sums: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families((await send(port, "/metrics")).body.decode()):
        for sample in family.samples:
            sums[sample.name] += sample.value
    return dict(sums)
