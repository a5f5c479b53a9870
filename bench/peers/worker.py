"""worker: one engine's process: started, asked in JSON lines, stopped and continued, ended."""

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

LAST_WORDS = 2000  # characters of the log that are read for the reason of an end
LAST_SECONDS = 10  # that a process has for ending once its answers have


class Failed(Exception):
    """An engine that ended, hung, or could not do what it was asked; the reason in a few words."""


class Worker:
    """A running worker. Times are seconds.

    It sleeps (SIGSTOP, with all processes it started) except while it is asked: threads that spin would steal cores.
    """

    def __init__(self, command: Sequence[str | Path], log: Path, threads: int, folder: Path) -> None:
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self.started = time.perf_counter()
        with open(log, "w") as errors:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=folder,
                env=os.environ | {"OMP_NUM_THREADS": str(threads)},
                start_new_session=True,
            )
        self._unread = b""

    def ask(self, verb: str, timeout: float, **fields: Any) -> dict[str, Any]:
        """One question and its answer. Raises Failed; the process is gone then, unless it answered with an error."""
        self._signal(signal.SIGCONT)
        try:
            self._send({"do": verb, **fields})
            answer: dict[str, Any] = json.loads(self._line(timeout))
        except (BrokenPipeError, EOFError):
            raise Failed(self._end()) from None
        except TimeoutError:
            self.kill()
            raise Failed(f"no answer to {verb} in {timeout:.0f} s") from None
        self._signal(signal.SIGSTOP)
        if "error" in answer:
            raise Failed(_in_short(answer["error"]))
        return answer

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """End it and all it started, whatever it does."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # what it was told last, it never read
                pipe.close()

    def _send(self, said: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(said).encode() + b"\n")
        self._process.stdin.flush()

    def _line(self, timeout: float) -> bytes:
        """The next line of its answers. Raises EOFError, TimeoutError."""
        assert self._process.stdout is not None
        pipe, until = self._process.stdout.fileno(), time.monotonic() + timeout
        while b"\n" not in self._unread:
            if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError
            if not (piece := os.read(pipe, 1 << 16)):
                raise EOFError
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _end(self) -> str:
        """Why it ended."""
        try:
            code = self._process.wait(LAST_SECONDS)
        except subprocess.TimeoutExpired:  # it closed its answers, and lives on
            self.kill()
            return "closed its answers"
        how = signal.Signals(-code).name if code < 0 else f"status {code}"
        said = self._log.read_text(errors="replace")[-LAST_WORDS:].strip().splitlines()
        return _in_short(f"ended with {how}" + (f": {said[-1]}" if said else ""))

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has ended, and all that it started
            os.killpg(self._process.pid, number)


def _in_short(text: str) -> str:
    """One line, without the paths of this machine: it is kept with the results."""
    text = text.replace(os.getcwd(), ".").replace(str(Path.home()), "~")
    first = text.strip().splitlines()[0] if text.strip() else "no reason given"
    return first if len(first) <= 160 else first[:157] + "..."
