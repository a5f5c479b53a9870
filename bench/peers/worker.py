"""worker: one engine's process, driven by JSON lines and stopped between calls."""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

LOG_TAIL = 2000  # characters of the log that are searched for the reason of an exit
EXIT_SECONDS = 10  # time for a process to exit after it has closed its output


class WorkerFailed(Exception):
    """An engine ended, hung or returned an error; the message is the reason."""


class Stoppable:
    """A process and its children in a session of their own. They can be stopped, so that they take no CPU time."""

    def __init__(self, command: Sequence[str | Path], log: Path, folder: Path, **options: Any) -> None:
        """Start it. Its output goes to the log. options: more arguments of `Popen`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        self.started = time.perf_counter()
        with open(log, "w") as output:
            outputs = {"stdout": output, "stderr": output} | options
            self._process = subprocess.Popen(list(command), cwd=folder, start_new_session=True, **outputs)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it and its children with SIGKILL."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it and its children have ended
            os.killpg(self._process.pid, number)


class Worker(Stoppable):
    """A running worker, which is stopped between calls, because spinning threads would occupy cores."""

    def __init__(self, command: Sequence[str | Path], log: Path, threads: int, folder: Path) -> None:
        pipe, environment = subprocess.PIPE, os.environ | {"OMP_NUM_THREADS": str(threads)}
        super().__init__(command, log, folder, stdin=pipe, stdout=pipe, env=environment)
        self._unread = b""

    def call(self, verb: str, timeout: float, **fields: Any) -> dict[str, Any]:
        """Send one command and return the reply.

        Raises WorkerFailed. The process has ended then, unless it replied with an error.
        """
        self.resume()
        try:
            self._send({"do": verb, **fields})
            reply: dict[str, Any] = json.loads(self._line(timeout))
        except (BrokenPipeError, EOFError):
            raise WorkerFailed(self._end()) from None
        except TimeoutError:
            self.kill()
            raise WorkerFailed(f"no reply to {verb} in {timeout:.0f} s") from None
        self.pause()
        if "error" in reply:
            raise WorkerFailed(_shortened(reply["error"]))
        return reply

    def kill(self) -> None:
        super().kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # the last command may be unread
                pipe.close()

    def _send(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def _line(self, timeout: float) -> bytes:
        """Return the next line of output. Raises EOFError, TimeoutError."""
        assert self._process.stdout is not None
        pipe, until = self._process.stdout.fileno(), time.monotonic() + timeout
        while b"\n" not in self._unread:
            if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError
            if not (data := os.read(pipe, 1 << 16)):
                raise EOFError
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _end(self) -> str:
        """Wait for the process to exit and return the reason."""
        try:
            code = self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:  # its output is closed, but it is alive
            self.kill()
            return "closed its output"
        how = signal.Signals(-code).name if code < 0 else f"status {code}"
        lines = self._log.read_text(errors="replace")[-LOG_TAIL:].strip().splitlines()
        return _shortened(f"ended with {how}" + (f": {lines[-1]}" if lines else ""))


def _shortened(text: str) -> str:
    """Return the first line without this machine's paths, as it is stored with the results."""
    text = text.replace(os.getcwd(), ".").replace(str(Path.home()), "~")
    first = text.strip().splitlines()[0] if text.strip() else "no reason given"
    return first if len(first) <= 160 else first[:157] + "..."
