"""overhead: CPU time of the HTTP process and of the engine's process for each streamed token and for each request.

    python -m bench.overhead                        64 streams at 3,000 tokens/s: about a minute

The engine computes nothing: it sleeps between its steps, and its tokens are those of a text. So the CPU time is that of
HTTP, detokenising, messages and scheduling. The clients are one other process. A token's time is the difference between
long answers and answers of one token, divided by their tokens.
"""

import argparse
import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.load import port_of

TEXT = "The sea is never quite still: wind moves its surface, tides its depth — and each wave ends on some shore. "
PATHS = ("completions", "chat/completions")
RATE, SLOTS = "RINGKV_BENCH_RATE", 64
END = b"0\r\n\r\n"  # of a chunked body


@dataclass(frozen=True)
class Spent:
    """CPU seconds of a load. waited: its wall seconds."""

    http: float
    engine: float
    waited: float

    def less(self, other: "Spent") -> "Spent":
        return Spent(self.http - other.http, self.engine - other.engine, self.waited - other.waited)


@dataclass(frozen=True)
class Overhead:
    """CPU seconds per token and per request, of answers at `path`."""

    path: str
    http_token_s: float
    engine_token_s: float
    http_request_s: float
    tokens_per_s: float  # that were streamed


class ScriptedServer:
    """`ringkv serve` with an engine that does not compute."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        self._port = port_of(process.stdout)
        self._http = psutil.Process(process.pid)
        self._engine = next(one for one in self._http.children() if "spawn_main" in " ".join(one.cmdline()))

    def run(self, path: str, fields: Mapping[str, Any], streams: int, rounds: int, tokens: int) -> Spent:
        """Send `rounds` requests over each of `streams` connections and read their answers."""
        body = {"max_tokens": tokens, "stream": True, "ignore_eos": True, **prompt_of(path), **fields}
        before, started = self._cpu(), time.perf_counter()
        read_all(self._port, _request(path, json.dumps(body).encode()), streams, rounds)
        waited = time.perf_counter() - started
        return Spent(*self._cpu(), waited).less(Spent(*before, 0.0))

    def _cpu(self) -> tuple[float, float]:
        http, engine = (sum(one.cpu_times()[:2]) for one in (self._http, self._engine))
        return http, engine


def prompt_of(path: str) -> Mapping[str, Any]:
    return {"messages": [{"role": "user", "content": TEXT}]} if path.startswith("chat") else {"prompt": TEXT}


def read_all(port: int, request: bytes, streams: int, rounds: int) -> None:
    """Send a request `rounds` times over each of `streams` connections, the next one after each answer."""
    left, ends = dict.fromkeys(range(streams), rounds), dict.fromkeys(range(streams), b"")
    with selectors.DefaultSelector() as ready:
        for stream in left:
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall(request)
            ready.register(connection, selectors.EVENT_READ, stream)
        while ready.get_map():
            for key, _ in ready.select():
                connection, stream = key.fileobj, key.data
                assert isinstance(connection, socket.socket)
                received = connection.recv(1 << 16)
                assert received, "the server closed a connection"
                ends[stream] = (ends[stream] + received)[-len(END) :]
                if ends[stream] != END:
                    continue
                left[stream] -= 1
                if left[stream]:
                    connection.sendall(request)
                else:
                    ready.unregister(connection)
                    connection.close()


def _request(path: str, body: bytes) -> bytes:
    head = f"POST /v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@contextmanager
def scripted(model: str, rate: float) -> Iterator[ScriptedServer]:
    command = [sys.executable, "-m", "bench.overhead", "--serve", "--model", model]
    environment = os.environ | {RATE: str(rate)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield ScriptedServer(process)
        finally:
            process.terminate()


def serve(model: str) -> None:
    """Serve a model's tokenizer and template with a scripted engine."""
    from ringkv.residency.locate import locate
    from ringkv.server.main import WantedModel, run
    from tests.toy import config

    wanted = config(model_dir=Path(locate(model)), slots=SLOTS, capacity=4096, prompt_tokens=4096, chunk=512)
    run([WantedModel(wanted, ("scripted",))], port=0, builder="bench.overhead:build", on_status=_show, drain_seconds=0)


def _show(text: str) -> None:
    with suppress(BrokenPipeError):  # the benchmark has ended
        print(text, flush=True)


def build(config: Any, progress: Any) -> Any:
    """Build the scripted engine, in its process."""
    from ringkv.base.engine import Sampled
    from ringkv.text.tokenizer import Tokenizer
    from tests.toy import ToyEngine, limits

    tokenizer = Tokenizer.from_directory(config.model_dir)
    script = tokenizer.encode(TEXT, add_special_tokens=False)

    class Scripted(ToyEngine):
        """Samples the script's tokens, and takes the time of a step of all its running requests."""

        def _sample(self, index: int, forced: int | None) -> Sampled:
            slot = self.slots.get(index)
            if slot is None:
                return Sampled(0, None)
            slot.sampled += 1
            self.sampled[index] = script[slot.sampled % len(script)]
            return Sampled(self.sampled[index], None)

        def forward(self, drafts: Any = None) -> None:
            self.seconds = len(self.slots) / float(os.environ[RATE])
            super().forward(drafts)

    shapes = {name: getattr(config, name) for name in ("slots", "capacity", "prompt_tokens", "chunk", "lanes")}
    return Scripted(limits(**shapes, vocab=max(tokenizer.vocab_size, max(script) + 1)), config.kv)


def measure(server: ScriptedServer, path: str, streams: int, tokens: int, rounds: int) -> Overhead:
    short = server.run(path, {}, streams, rounds, 1)
    long = server.run(path, {}, streams, rounds, tokens)
    more, requests = long.less(short), streams * rounds
    count = requests * (tokens - 1)
    per_token = more.http / count
    return Overhead(
        path, per_token, more.engine / count, short.http / requests - per_token, requests * tokens / long.waited
    )


def shown(figures: Sequence[Mapping[str, Any]]) -> str:
    from bench.results import table

    head = ("path", "HTTP process, a token", "engine's process, a token", "HTTP process, a request", "tokens/s")
    times = ("http_token_s", "engine_token_s", "http_request_s")
    rows = [
        (one["path"], *(f"{1e6 * one[name]:,.0f} us" for name in times), f"{one['tokens_per_s']:,.0f}")
        for one in figures
    ]
    return table(head, rows)


def main() -> None:
    args = _arguments()
    if args.serve:
        return serve(args.model)
    from bench.results import keep

    with scripted(args.model, args.rate) as server:
        server.run(PATHS[0], {}, args.streams, 1, 16)  # warms up
        found = [measure(server, path, args.streams, args.tokens, args.rounds) for path in PATHS]
    figures = [asdict(one) for one in found]
    names = ("model", "streams", "rate", "tokens", "rounds")
    keep("overhead", {name: getattr(args, name) for name in names}, figures, shown(figures))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=3000, help="tokens/s of all streams")
    parser.add_argument("--tokens", type=int, default=100, help="of an answer")
    parser.add_argument("--rounds", type=int, default=2, help="answers of each stream")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
