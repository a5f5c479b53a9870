"""limits_of_requests: what a small request beside the largest ones that a server allows has to wait, and their memory.

    python -m bench.limits_of_requests              SmolLM2, each kind in turn
    python -m bench.limits_of_requests --kinds echo,schema

One client streams short answers all the time, and a second sends GET /health, each on a new connection. That is
measured alone, and then while requests of one kind are sent, each the largest in one respect. A gap between two tokens
may be as long as the longest one alone and twice `--max-step`. Strangers, the last two kinds, send slowly or send too
much. Everything goes over loopback. The status is 1 if a gap is longer or the memory exceeds the plan.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import psutil

from bench.arguments import command_line, names_of
from bench.overload.clients import COMPLETIONS
from bench.overload.http import send
from bench.results import keep, table
from bench.serving import ask, serving
from ringkv.plan.engine_footprint import RESERVE

MAX_STEP_S, LONGEST = 0.1, 8192
HTTP_BYTES, ENGINE_BYTES = 400e6, RESERVE / 2  # the HTTP process's memory; by how much the engine's may grow
ALONE_S, OVER_S, PAUSE_S = 15.0, 300.0, 1.0  # without other requests; in which a kind must be over; after a refusal
SENDERS, SENDS_S, BODIES, BODY_BYTES, PIECE = 500, 20.0, 64, 64 << 20, 64 << 10
CHAT = "/v1/chat/completions"
SMALL = {"prompt": "The sea is", "max_tokens": 32, "temperature": 0, "ignore_eos": True, "stream": True}
IDS = [1000 + place % 20_000 for place in range(LONGEST - 200)]
WORDS = "The quick brown fox jumps over the lazy dog. " * 700
USER = [{"role": "user", "content": "Hello"}]
OBJECT = {"type": "object", "properties": {f"field_{n}": {"enum": [f"{n} {m}" for m in range(20)]} for n in range(200)}}
TOOL = {"type": "object", "properties": {f"field_{n}": {"type": "string"} for n in range(20)}}
TOOLS = [{"type": "function", "function": {"name": f"f{n}", "parameters": TOOL}} for n in range(16)]
FORM = {"type": "json_schema", "json_schema": {"name": "large", "schema": OBJECT}}
PENALTIES = {"presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 1.2, "stop": ["x" * 500] * 4}
TRUNCATED = {"top_p": 0.9, "min_p": 0.01, "top_k": 1000, "logit_bias": {f"{n}": -1 for n in range(1024)}}

Body = Mapping[str, Any]
KINDS: Mapping[str, Sequence[tuple[str, Body]]] = {
    **{
        f"longest prompt, {select}": [(COMPLETIONS, {"prompt": IDS, "max_tokens": 4, "kv_select": select})]
        for select in ("snapkv", "tova", "keydiff", "kvzip")
    },
    "echo": [(COMPLETIONS, {"prompt": IDS, "max_tokens": 1, "echo": True, "logprobs": 20, "n": n}) for n in (1, 16)],
    "answers": [(COMPLETIONS, {"prompt": "a", "max_tokens": 32, "n": 128, "best_of": 128, "logprobs": 20})],
    "prompts": [(COMPLETIONS, {"prompt": [[1000 + n] * 100 for n in range(600)], "max_tokens": 1})],
    "text": [("/tokenize", {"prompt": text, "return_token_strs": True}) for text in (WORDS * 30, "a" * 900_000)],
    "messages": [(CHAT, {"messages": USER * 1000, "max_tokens": 1})],
    "tools": [(CHAT, {"messages": USER, "max_tokens": 8, "tool_choice": "required", "tools": TOOLS})],
    "schema": [(CHAT, {"messages": USER, "max_tokens": 64, "response_format": FORM})],
    "sampling": [(COMPLETIONS, {"prompt": "a", "max_tokens": 256, "n": 4} | PENALTIES | TRUNCATED)],
}
Work = Callable[[], Sequence[int] | None]
"""Sends requests from a process of its own. Returns their statuses, 0 if a connection ended without one."""


def main() -> None:
    kinds = (*KINDS, *STRANGERS)
    parser = command_line(__doc__, model="smollm2", graphs="compiled")
    parser.add_argument("--kinds", type=names_of(kinds, "kind"), default=kinds)
    args = parser.parse_args()
    flags = (
        "--slots",
        4,
        "--max-prompt",
        LONGEST,
        "--prefix-store",
        0,
        "--max-step",
        f"{1e3 * MAX_STEP_S:.0f}",
        "--graphs",
        args.graphs,
    )
    with serving("--model", args.model, *flags) as server:
        figures = asyncio.run(_measure(server.pid, server.port, args.kinds))
    keep("limits_of_requests", {"model": args.model, "graphs": args.graphs}, figures, _table(figures))
    sys.exit(not all(figure["passed"] for figure in figures))


async def _measure(pid: int, port: int, kinds: Sequence[str]) -> list[dict[str, Any]]:
    http = psutil.Process(pid)
    engine = max(http.children(), key=lambda child: child.memory_info().rss)
    await send(port, COMPLETIONS, SMALL)  # warms up
    alone = await _beside(port, partial(time.sleep, ALONE_S))
    before, figures = engine.memory_info().rss, []
    for kind in kinds:
        work = partial(STRANGERS[kind], port) if kind in STRANGERS else partial(_posted, port, KINDS[kind])
        found = await _beside(port, work)
        sizes = {"http_bytes": http.memory_info().rss, "more_bytes": engine.memory_info().rss - before}
        bounds = {"gap_s": alone["gap_s"] + 2 * MAX_STEP_S, "http_bytes": HTTP_BYTES, "more_bytes": ENGINE_BYTES}
        passed = all((found | sizes)[name] <= bound for name, bound in bounds.items())
        figures.append({"kind": kind, **found, **sizes, "allowed_s": bounds["gap_s"], "passed": int(passed)})
        print(_table(figures[-1:]), flush=True)
    return figures


async def _beside(port: int, work: Work) -> dict[str, Any]:
    """Stream small answers until other work is done. Return the longest waits in seconds, and its statuses."""
    with ProcessPoolExecutor(1) as pool:
        working = asyncio.get_running_loop().run_in_executor(pool, work)
        gaps, health, refused = [0.0], [0.0], 0
        while not working.done():
            streamed, seconds = await asyncio.gather(send(port, COMPLETIONS, SMALL), _health(port))
            assert streamed.status in (200, 503), streamed
            gaps += streamed.gaps
            health.append(seconds)
            if streamed.status == 503:  # the queue is full
                refused += 1
                await asyncio.sleep(PAUSE_S)
    said = [f"{count} x {status or 'cut'}" for status, count in sorted(Counter(await working).items())]
    return {"gap_s": max(gaps), "health_s": max(health), "said": ", ".join([*said, f"{refused} small ones refused"])}


async def _health(port: int) -> float:
    began = time.perf_counter()
    assert (await send(port, "/health")).status == 200
    return time.perf_counter() - began


def _posted(port: int, requests: Sequence[tuple[str, Body]]) -> list[int]:
    """Send requests in turn, and read their whole answers."""
    return [ask(port, "POST", path, json.dumps(body).encode(), OVER_S)[0] for path, body in requests]


def _send_slowly(port: int) -> None:
    """Keep many connections busy, on which a byte of a header arrives each second."""

    async def sender() -> None:
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /health HTTP/1.1\r\nX: ")
                while not writer.is_closing():
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(1)

    async def together() -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(sender() for _ in range(SENDERS))), SENDS_S)

    asyncio.run(together())


def _send_bodies(port: int) -> list[int]:
    """Send bodies that are too large, all at once. A server refuses them before they have arrived."""

    async def body() -> int:
        lines = (f"POST {COMPLETIONS} HTTP/1.1", "Host: localhost", "Content-Type: application/json")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answer = asyncio.create_task(reader.readline())
        with suppress(OSError):
            writer.write("\r\n".join((*lines, f"Content-Length: {BODY_BYTES}", "", '{"prompt": "')).encode())
            for _ in range(BODY_BYTES // PIECE):
                writer.write(b"x" * PIECE)
                await writer.drain()
        writer.close()
        with suppress(OSError, IndexError):
            return int((await answer).split()[1])
        return 0

    async def together() -> list[int]:
        return await asyncio.wait_for(asyncio.gather(*(body() for _ in range(BODIES))), OVER_S)

    return asyncio.run(together())


STRANGERS: Mapping[str, Callable[[int], Sequence[int] | None]] = {"slow senders": _send_slowly, "bodies": _send_bodies}


def _table(figures: Sequence[Mapping[str, Any]]) -> str:
    head = ("requests", "longest gap", "allowed", "GET /health", "HTTP process", "engine grew by", "statuses", "")
    rows = [
        (
            figure["kind"],
            *(f"{1e3 * figure[name]:.0f} ms" for name in ("gap_s", "allowed_s", "health_s")),
            *(f"{figure[name] / 1e6:,.0f} MB" for name in ("http_bytes", "more_bytes")),
            figure["said"],
            "passed" if figure["passed"] else "FAILED",
        )
        for figure in figures
    ]
    return table(head, rows)


if __name__ == "__main__":
    main()
