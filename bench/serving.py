"""serving: `ringkv serve` as a process of its own, for the tools that send requests to it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple

RINGKV = Path(sys.executable).with_name("ringkv")  # the command that is installed beside this interpreter
STARTS_S, STOPS_S = 900.0, 60.0  # seconds in which a server must be ready, and must end after SIGTERM


class ServingProcess(NamedTuple):
    pid: int
    url: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextmanager
def serving(*flags: object, ringkv: Path = RINGKV, **process: Any) -> Iterator[ServingProcess]:
    """Run `ringkv serve` on a free port. After the block it gets SIGTERM, if it still runs.

    process: more arguments of `Popen`. Raises RuntimeError if it is not ready in time, ends before, or does not end
    with status 0.
    """
    command = [str(part) for part in (ringkv, "serve", "--port", 0, "--no-request-log", *flags)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **process) as server:
        assert server.stdout is not None
        late = Timer(STARTS_S, server.kill)
        late.start()
        addresses = (re.search(r"http://[\d.]+:\d+", line) for line in server.stdout)
        try:
            address = next(filter(None, addresses), None)
            late.cancel()
            if address is None:
                raise RuntimeError(f"the server ended with status {server.wait()} before it was ready")
            yield ServingProcess(server.pid, address[0])
        finally:
            late.cancel()
            server.terminate()
            late = Timer(STOPS_S, server.kill)
            late.start()
            server.communicate()  # it still writes that it has stopped
            late.cancel()
    if server.returncode:
        raise RuntimeError(f"the server's exit status is {server.returncode}")


def ask(port: int, method: str, path: str, body: bytes | None = None, timeout: float = 60.0) -> tuple[int, bytes]:
    """Send a request, with JSON if it has a body, on a connection of its own. Return the status and the content."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=timeout)) as connection:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        return response.status, response.read()
