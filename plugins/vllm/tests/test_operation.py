"""A server that loses its clients or its engine does with the plug-in what vLLM's does without it."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil
import pytest

pytest.importorskip("vllm")

from tiny import BUDGET, LONGEST

OURS = [str(Path(sys.executable).with_name("ringkv-vllm")), "serve", "--kv-budget", f"{BUDGET}"]
PLAIN = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model"]
FLAGS = ["--dtype", "float32", "--enforce-eager", "--max-model-len", f"{LONGEST}", "--max-num-seqs", "2"]
FLAGS += ["--kv-cache-memory-bytes", f"{64 << 20}", "--block-size", "32", "--max-num-batched-tokens", "256"]
LONG = {"prompt": list(range(3, 190)), "max_tokens": LONGEST - 200, "ignore_eos": True, "stream": True}
MINUTES = 5 * 60.0  # a server that is not ready after this never will be


class Outcome(NamedTuple):
    """What clients and the system see."""

    left_running: float  # requests after all clients have gone
    waited: int  # status of one request more than there are slots
    after_kill: str  # what the client of a running answer gets
    exit_status: int


@contextmanager
def served(command: list[str], log: Path) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with log.open("wb") as file:
        server = subprocess.Popen([*command, "--port", f"{port}"], stdout=file, stderr=subprocess.STDOUT)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=MINUTES)
    try:
        until(lambda: server.poll() is not None or is_ready(client))
        assert server.poll() is None, log.read_text()[-3000:]
        yield server, client
    finally:
        children = psutil.Process(server.pid).children(recursive=True) if server.poll() is None else []
        for process in (server, *children):
            process.kill()
        server.wait()


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.HTTPError:
        return False


def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds that must hold some time; after minutes the test fails."""
    ends = time.monotonic() + MINUTES
    while not holds():
        assert time.monotonic() < ends, "it never held"
        time.sleep(0.1)


def running(client: httpx.Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running"))


def outcome(command: list[str], folder: Path, log: Path) -> Outcome:
    with served([*command, str(folder), *FLAGS], log) as (server, client):
        body = {"model": str(folder), **LONG}
        streams = [client.stream("POST", "/v1/completions", json=body) for _ in range(2)]
        for stream in streams:
            next(stream.__enter__().iter_lines())
        short = {**body, "max_tokens": 4, "stream": False}
        until(lambda: running(client) == 2)
        for stream in streams:
            stream.__exit__(None, None, None)
        waited = client.post("/v1/completions", json=short).status_code
        until(lambda: running(client) == 0)
        left = running(client)
        with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            core = next(p for p in psutil.Process(server.pid).children(recursive=True) if "EngineCore" in p.name())
            core.send_signal(signal.SIGKILL)
            try:
                errors = [line for line in lines if "error" in line]
                after = "an error" if errors else "a cut answer"
            except httpx.HTTPError as error:
                after = type(error).__name__
        return Outcome(left, waited, after, server.wait(timeout=MINUTES))


def test_lost_clients_and_a_killed_engine_are_as_in_plain_vllm(folder: Path, tmp_path: Path) -> None:
    plain = outcome(PLAIN, folder, tmp_path / "plain")
    ours = outcome(OURS, folder, tmp_path / "ours")
    assert ours == plain
    assert (plain.left_running, plain.waited) == (0, 200)
