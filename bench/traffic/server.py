"""server: one server's processes. They are stopped between turns, so that they take no CPU time from the others."""

import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bench.data import REPOSITORY
from bench.peers.worker import Stoppable
from bench.peers.workers.serve import die_with_parent
from bench.serving import ask

HOST = "127.0.0.1"
POLL = 0.25  # seconds between questions whether it is ready


class ServerFailed(Exception):
    """A server ended or did not become ready; the message is the reason."""


class Server(Stoppable):
    """A running server. It ends with this process."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], port: int, log: Path) -> None:
        options = {"stdin": subprocess.DEVNULL, "env": {**os.environ, **environment}, "preexec_fn": die_with_parent}
        super().__init__(command, log, REPOSITORY, **options)
        self.port = port

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

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
            status, body = ask(self.port, "GET", path, timeout=5)
            return body if status == 200 else None
        return None


def free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
