"""Runs a program that ends with the process that started it: python tethered.py PARENT PROGRAM ARGUMENT...

A compiler is several processes. If the process that started it is killed, they would compile on for minutes. This one
stays between them: it starts the program in a process group of its own, and kills the group when its own parent is
gone or when it is interrupted. PARENT is the number of that process. This file needs the standard library only, so it
starts in a few hundredths of a second.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import FrameType

PYTHON = (sys.executable, "-I", "-S", __file__)
INTERVAL = 0.1  # seconds between two looks at the parent
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """One of `SIGNALS` arrived."""


def tethered(command: Sequence[str]) -> list[str]:
    """Return a command that runs this one, and ends with this process."""
    return [*PYTHON, str(os.getpid()), *command]


def script(program: str, folder: Path) -> Path:
    """Return a shell script of the program's name that runs it, and ends with the process that starts the script.

    Creates it in `folder` if it is not there yet.
    """
    text = f'#!/bin/sh\nexec {shlex.join(PYTHON)} $PPID {shlex.quote(program)} "$@"\n'
    path = folder / sha256(text.encode()).hexdigest()[:16] / Path(program).name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.{os.getpid()}")
        new.write_text(text)
        new.chmod(0o700)
        new.replace(path)
    return path


def main(parent: int, command: Sequence[str]) -> int:
    """Return the program's exit status, 128 + N if signal N ended it or us, and 1 if our parent has ended."""
    if os.getppid() != parent:
        return 1
    try:
        _raise_on_signals()
        with subprocess.Popen(command, process_group=0) as program:
            status = _status(program, parent)
    except Interrupted as error:
        return 128 + int(error.args[0])
    if status is None:
        return 1
    return status if status >= 0 else 128 - status


def _status(program: "subprocess.Popen[bytes]", parent: int) -> int | None:
    """Wait for the program and return its status, negative if a signal ended it.

    Kills it, with its group, if we are interrupted, and if our parent has ended; then there is no status.
    """
    try:
        while os.getppid() == parent:
            with suppress(subprocess.TimeoutExpired):
                return program.wait(INTERVAL)
        return None
    finally:
        if program.returncode is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.killpg(program.pid, signal.SIGKILL)


def _raise_on_signals() -> None:
    """Raise `Interrupted` for each signal that was not ignored when we were started."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
