"""Child: a process that the benchmark starts, and that sends it numbers."""

from collections.abc import Callable
from multiprocessing import get_context

THREADS = 2


class Child:
    """A process that sends numbers: once if it is ready, then for each run."""

    def __init__(self, target: Callable[..., None], *arguments: object) -> None:
        self.connection, theirs = get_context("spawn").Pipe()
        self._process = get_context("spawn").Process(target=target, args=(theirs, *arguments))
        self._process.start()
        theirs.close()
        self.pid = self._process.pid
        self.receive()  # it is ready

    def run(self) -> list[float]:
        self.connection.send_bytes(b"go")
        return self.receive()

    def receive(self) -> list[float]:
        numbers: list[float] = self.connection.recv()
        return numbers

    def close(self) -> None:
        self.connection.close()
        self._process.join(10)
        self._process.kill()
