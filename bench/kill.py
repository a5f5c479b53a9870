"""kill: kill -9 of the engine process under load, again and again. What becomes of its requests, and of the server?

    python -m bench.kill                            SmolLM2, 8 slots, 16 clients, 20 times: seven minutes
    python -m bench.kill --times 3

Each client streams one answer after another. A kill is right if every request that was running or waiting ends with an
error within seconds, no stream is cut or hangs, and a new request is answered within 15 seconds. The server waits a
second before it starts an engine again, and longer if the last one was short-lived: so each engine may run for a while.

At the end the server gets SIGTERM under the same load. Every request that it has accepted must finish.
"""

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from statistics import median
from threading import Event
from typing import Literal, NamedTuple

import psutil

from bench.arguments import command_line
from bench.results import keep, table
from bench.serving import ServingProcess, ask, serving

Outcome = Literal["finished", "error", "refused", "cut", "hung"]
"""How a request ended. refused: a 503 before it was accepted. cut: its connection ended without a word."""

HUNG = 30.0  # seconds without a byte
BACK = 15.0  # seconds in which the service must be back
STEADY = 11.0  # seconds that an engine runs before it is killed; after 10 the server forgets earlier restarts
PAUSE = 0.2  # seconds between a refusal and the client's next request
TOKENS = 100  # of an answer
PROMPT = "Write a long story about a lighthouse and the people who have lived in it. "
ENGINE_DIED = b'"code":"engine_died"'


class Ended(NamedTuple):
    """One request; times are `time.monotonic`."""

    began: float
    ended: float
    outcome: Outcome


class Kill(NamedTuple):
    """One kill: when, the seconds until the server was ready again, and until a new answer's first token."""

    time: float
    ready_s: float
    back_s: float


class KilledServer:
    """`ringkv serve`, its clients, and how their requests ended."""

    def __init__(self, serving: ServingProcess) -> None:
        self.process, self.port = psutil.Process(serving.pid), serving.port
        self.ended: list[Ended] = []
        self._stop = Event()

    def kill_engine(self) -> Kill:
        """Kill the engine and wait until a new request is answered."""
        (engine,) = (child for child in self.process.children() if "spawn_main" in " ".join(child.cmdline()))
        killed = time.monotonic()
        engine.send_signal(signal.SIGKILL)
        wait(lambda: not self.is_ready())
        wait(self.is_ready)
        ready = time.monotonic()
        wait(lambda: complete(self.port, PROMPT, 1) == "finished")
        return Kill(killed, ready - killed, time.monotonic() - killed)

    def is_ready(self) -> bool:
        return ask(self.port, "GET", "/ready", timeout=HUNG)[0] == 200

    def drain(self) -> float:
        """Send SIGTERM, and no more requests. Return when."""
        self._stop.set()
        terminated = time.monotonic()
        self.process.terminate()
        return terminated

    @contextmanager
    def load(self, clients: int) -> Iterator[None]:
        """Keep clients busy while the block runs."""
        self._stop.clear()
        with ThreadPoolExecutor(clients) as pool:
            for client in range(clients):
                pool.submit(self._send, client)
            try:
                yield
            finally:
                self._stop.set()

    def _send(self, client: int) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            outcome = complete(self.port, PROMPT * (1 + client % 4), TOKENS)
            self.ended.append(Ended(began, time.monotonic(), outcome))
            if outcome == "refused":
                time.sleep(PAUSE)


def main() -> None:
    args = command_line(__doc__, model="smollm2", times=20, slots=8, clients=16).parse_args()
    flags = ("--model", args.model, "--slots", args.slots, "--max-prompt", 1024, "--prefix-store", 0)
    with serving(*flags) as process:
        server = KilledServer(process)
        files = server.process.num_fds()
        kills = []
        with server.load(args.clients):
            for _ in range(args.times):
                time.sleep(STEADY)
                kills.append(server.kill_engine())
                print(f"killed {len(kills)} of {args.times}: back after {kills[-1].back_s:.1f} s", flush=True)
        time.sleep(PAUSE)  # the server closes its ends of the clients' connections
        files = server.process.num_fds() - files
        killed = list(server.ended)
        with server.load(args.clients):
            time.sleep(STEADY)
            terminated = server.drain()
    drained = running_at(terminated, server.ended)
    affected = [running_at(kill.time, killed) for kill in kills]
    figures = figure(kills, affected, killed, files) | drain_figure(drained)
    rows = [(name, f"{value:.4g}") for name, value in figures.items()]
    keep("kill", vars(args), [figures], table(("", "found"), rows))
    if failures := [*wrong(kills, affected, killed), *wrong_drain(drained)]:
        sys.exit("\n".join(failures))


def running_at(signalled: float, ended: Sequence[Ended]) -> list[Ended]:
    """Return the requests that a signal may have met, without those that were refused."""
    return [request for request in ended if request.began < signalled < request.ended and request.outcome != "refused"]


def drain_figure(drained: Sequence[Ended]) -> dict[str, float]:
    lost = sum(request.outcome != "finished" for request in drained)
    return {"drained_requests": len(drained) - lost, "lost_requests": lost}


def wrong_drain(drained: Sequence[Ended]) -> Iterator[str]:
    if lost := drain_figure(drained)["lost_requests"]:
        yield f"SIGTERM: {lost} accepted requests did not finish"
    if not drained:
        yield "SIGTERM met no request; it shows nothing"


def figure(
    kills: Sequence[Kill], affected: Sequence[Sequence[Ended]], ended: Sequence[Ended], files: int
) -> dict[str, float]:
    counts = Counter(request.outcome for request in ended)
    last = [max(request.ended for request in met) - kill.time for kill, met in zip(kills, affected, strict=True) if met]
    return {
        "failed_requests": counts["error"],
        "cut_requests": counts["cut"],
        "hung_requests": counts["hung"],
        "error_s": max(last, default=0.0),
        "ready_s": median(kill.ready_s for kill in kills),
        "back_s": median(kill.back_s for kill in kills),
        "slowest_back_s": max(kill.back_s for kill in kills),
        "more_files": files,
    }


def wrong(kills: Sequence[Kill], affected: Sequence[Sequence[Ended]], ended: Sequence[Ended]) -> Iterator[str]:
    """Yield a sentence for each thing that must not happen."""
    counts = Counter(request.outcome for request in ended)
    for outcome in ("cut", "hung"):
        if counts[outcome]:
            yield f"{counts[outcome]} requests: {outcome}"
    for number, (kill, met) in enumerate(zip(kills, affected, strict=True), 1):
        if kill.back_s > BACK:
            yield f"kill {number}: the service was back after {kill.back_s:.1f} s, not within {BACK:g} s"
        if not any(request.outcome == "error" for request in met):
            yield f"kill {number} met no request; it shows nothing"


def complete(port: int, prompt: str, tokens: int) -> Outcome:
    """Stream one answer."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    connection = HTTPConnection("127.0.0.1", port, timeout=HUNG)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        with connection.getresponse() as response:
            if response.status == 503:
                return "error" if ENGINE_DIED in response.read() else "refused"
            return ending([line for line in response if line.startswith(b"data: ")])
    except TimeoutError:
        return "hung"
    except (OSError, HTTPException):
        return "cut"
    finally:
        connection.close()


def ending(events: Sequence[bytes]) -> Outcome:
    """Return how a stream ended, by its last two events."""
    if len(events) < 2 or events[-1].strip() != b"data: [DONE]":
        return "cut"
    last = json.loads(events[-2].removeprefix(b"data: "))
    if "error" in last:
        return "error"
    return "finished" if last["choices"][0]["finish_reason"] == "length" else "cut"


def wait(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the server was not back after {seconds:g} s")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
