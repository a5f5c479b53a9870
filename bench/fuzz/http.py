"""HTTP: damaged requests on connections of their own, to a server whose engine repeats the prompt.

A request may be refused, and its connection closed. A 5xx other than 503 is a finding, and so is a connection that gets
neither an answer nor an end.
"""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import cycle, islice
from random import Random
from typing import Any

import uvicorn

from bench.fuzz.mutate import END, VOCAB, bytewise, mutated_json
from bench.fuzz.target import Target
from ringkv.base.engine import Limits
from ringkv.base.events import Event, Finished, KVUsage, Token, TokenLogprob, Usage
from ringkv.base.kv import KVChoice
from ringkv.base.messages import EngineMetrics, KeptTokens, Occupancy, Stats
from ringkv.base.request import Request
from ringkv.server.app import make_app
from ringkv.server.protocol.bodies import BodyLimits
from ringkv.server.protocol.connections import ConnectionLimits, bounded_protocol
from ringkv.server.protocol.guard import Access, accepted_hosts
from ringkv.server.run.serving import LoadedModel
from ringkv.text.chat_template import ChatTemplate

REQUESTS = 40  # of a case, all at once
CLIENT_SECONDS = 0.5  # that a client may take to send
ANSWER_SECONDS = 5.0  # in which a connection must be answered or closed
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
SENT: Mapping[str, Mapping[str, Any]] = {
    "/v1/completions": {
        "model": "bytes", "prompt": ["ab", "c"], "max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "n": 2,
        "stop": ["x"], "logit_bias": {"97": 1}, "logprobs": 2, "seed": 7, "echo": True, "kv_policy": "streaming",
        "kv_budget": 32, "stream_options": {"include_usage": True}, "cache_salt": "s", "priority": 1, "timeout": 5,
    },
    "/v1/chat/completions": {
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "max_completion_tokens": 4, "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": "auto", "response_format": {"type": "json_object"}, "chat_template_kwargs": {"a": 1},
        "logprobs": True, "top_logprobs": 2,
    },
    "/v1/responses": {"input": [{"role": "user", "content": "hi"}], "max_output_tokens": 4, "metadata": {"a": "b"}},
    "/tokenize": {"prompt": "ab", "return_token_strs": True},
    "/detokenize": {"tokens": [97, 98]},
}  # fmt: skip
LINES = (
    b"Transfer-Encoding: chunked", b"Content-Length: 7", b"Content-Length: 99999999999999999999",
    b"Content-Type: text/plain", b"Content-Encoding: gzip", b"Host: evil.example", b"Authorization: Bearer \xff",
    b"Expect: 100-continue", b"Connection: Upgrade\r\nUpgrade: websocket", b"X: " + b"a" * 20_000, b"X" * 20_000,
    b"\0: \r", b"X-Request-Id: \x80 \t ",
)  # fmt: skip
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
METHODS = (b"GET", b"HEAD", b"OPTIONS", b"PUT", b"TRACE", b"CONNECT", b"post", b"\0")


def requests(random: Random) -> list[bytes]:
    return [_request(random) for _ in range(REQUESTS)]


def _request(random: Random) -> bytes:
    """Return the bytes of a request of which a field, a header, the method or some bytes are wrong."""
    path, fields = random.choice(list(SENT.items()))
    fields = {**fields, "stream": random.random() < 0.3}
    for _ in range(random.choice((0, 1, 1, 3))):
        fields = changed if isinstance(changed := mutated_json(random, fields), dict) else {"prompt": changed}
    body = json.dumps(fields).encode()
    method = random.choice(METHODS) if random.random() < 0.1 else b"POST"
    lines = [method + b" " + path.encode() + b" HTTP/1.1", b"Host: localhost", b"Content-Type: application/json"]
    lines += [b"Content-Length: %d" % len(body), b"Connection: close"]
    for _ in range(random.choice((0, 0, 1, 2))):
        lines.insert(random.randint(1, len(lines)), random.choice(LINES))
    request = b"\r\n".join((*lines, b"", body))
    return _damaged(random, request) if random.random() < 0.5 else request


def _damaged(random: Random, data: bytes) -> bytes:
    """Return the bytes after a cut, an insertion, a repetition or a change of some of them."""
    start = random.randint(0, len(data))
    end = start + random.choice((1, 1, 8, 200))
    return data[:start] + random.choice((b"", random.randbytes(end - start), data[start:end] * 9)) + data[end:]


def _events_of(request: Request) -> Iterator[Event]:
    count = min(8, request.sampling.max_tokens)
    top = request.sampling.logprobs
    for token in islice(cycle(request.tokens), count):
        logprob = None if top is None else TokenLogprob(-0.5, tuple((other, -1.0) for other in range(top)))
        yield Token(request.id, token, logprob)
    kv = KVUsage("streaming", 512, len(request.tokens), 0, 0, 512)
    yield Finished(request.id, "length", Usage(len(request.tokens), count, kv))


class Repeating:
    """A `Supervisor` that answers each request with its prompt, up to eight tokens."""

    limits = Limits(
        slots=8, capacity=512, prompt_tokens=512, context=600, chunk=64, lanes=1, vocab=VOCAB, entry_bytes=1,
        slot_bytes=512, held_bytes=1,
    )  # fmt: skip
    default_kv = KVChoice("streaming")
    alive = True
    restarts = 0

    async def submit(self, groups: Sequence[Sequence[Request]]) -> AsyncGenerator[Sequence[Event], None]:
        for group in groups:
            for request in group:
                yield list(_events_of(request))

    def cancel(self, request_id: str) -> None:
        pass

    def stats(self) -> Stats:
        return Stats(0, 0, 0, 8)

    def metrics(self) -> EngineMetrics:
        return EngineMetrics()

    def watch(self, on: bool) -> None:
        pass

    def slots(self) -> Occupancy:
        return Occupancy()

    async def kept(self, name: str) -> KeptTokens | None:
        return None


@cache
def _app() -> Any:
    assert END < VOCAB
    access = Access(hosts=accepted_hosts("127.0.0.1"), bodies=BodyLimits.of(512, None, CLIENT_SECONDS))
    template = ChatTemplate({"default": TEMPLATE}, {})
    return make_app([LoadedModel(Repeating(), bytewise(), template, ("bytes",))], access=access)


def answer_all(sent: Sequence[bytes]) -> list[bytes]:
    """Serve the requests over loopback; return what each connection got. Raises AssertionError for a finding."""
    return asyncio.run(_answer_all(sent))


async def _answer_all(sent: Sequence[bytes]) -> list[bytes]:
    http = bounded_protocol(ConnectionLimits(seconds=CLIENT_SECONDS))
    server = uvicorn.Server(uvicorn.Config(_app(), lifespan="off", log_level="critical", http=http, ws="none"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0.001)
        port = listener.getsockname()[1]
        answers = await asyncio.gather(*(_answer(port, request) for request in sent))
        probe = await _answer(port, b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        server.should_exit = True
        await serving
    for request, answer in zip(sent, answers, strict=True):
        status = answer[9:12]
        assert not status.startswith(b"5") or status == b"503", f"{request[:200]!r} got {answer[-300:]!r}"
    assert probe.startswith(b"HTTP/1.1 200"), f"the server no longer answers: {probe!r}"
    return list(answers)


async def _answer(port: int, request: bytes) -> bytes:
    """Return all that the server sends until it closes the connection; a kept one is closed when it is idle."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = b""
    with suppress(ConnectionError):
        writer.write(request)
        await writer.drain()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                received = await reader.readexactly(1)
            async with asyncio.timeout(CLIENT_SECONDS):
                while part := await reader.read(1 << 16):
                    received += part
        except asyncio.IncompleteReadError:
            pass  # closed without an answer
        except TimeoutError:
            assert received, f"no answer and no end within {ANSWER_SECONDS} s: {request[:300]!r}"
    writer.close()
    return received.removeprefix(CONTINUE)


HTTP = Target("HTTP requests: bodies, headers and bytes", requests, answer_all, _app, seconds=30.0)
