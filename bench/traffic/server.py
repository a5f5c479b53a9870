"""server: one server's processes. They are stopped between turns, so that they take no CPU time from the others."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path

import psutil

from bench.peers.weights import REPOSITORY
from bench.peers.workers.serve import die_with_parent

HOST = "127.0.0.1"
POLL = 0.25  # seconds between questions whether it is ready


class ServerFailed(Exception):
    """A server ended or did not become ready; the message is the reason."""


class Server:
    """A running server and its children, in a session of their own. It ends with this process."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], port: int, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.port, self._log = port, log
        self.started = time.perf_counter()
        with open(log, "w") as output:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=REPOSITORY,
                env={**os.environ, **environment},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait(self, path: str, seconds: float) -> float:
        """Wait until `path` answers 200. Returns the seconds since the start. Raises ServerFailed."""
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            if not self.alive:
                raise ServerFailed(f"ended with status {self._process.returncode}; see {self._log}")
            if self.get(path) is not None:
                return time.perf_counter() - self.started
            time.sleep(POLL)
        raise ServerFailed(f"was not ready after {seconds:.0f} s; see {self._log}")

    def get(self, path: str) -> bytes | None:
        """Return the body; None if there is no answer or its status is not 200."""
        with suppress(OSError):
            connection = HTTPConnection(HOST, self.port, timeout=5)
            connection.request("GET", path)
            with connection.getresponse() as answer:
                body = answer.read()
                return body if answer.status == 200 else None
        return None

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()

    def cpu_seconds(self) -> float:
        """Return the CPU time of all its processes."""
        return sum(sum(process.cpu_times()[:2]) for process in self._processes())

    def resident_bytes(self) -> int:
        return sum(process.memory_info().rss for process in self._processes())

    def _processes(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            first = psutil.Process(self._process.pid)
            return [first, *first.children(recursive=True)]
        return []

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        port: int = one.getsockname()[1]
        return port
