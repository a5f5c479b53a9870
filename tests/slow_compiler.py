"""A compiler that never ends: a script that waits for a child of its own, as g++ waits for cc1plus."""

import time
from collections.abc import Callable
from pathlib import Path

import psutil

SCRIPT = """#!/bin/sh
[ "$1" = --version ] && echo "slow 1.0" && exit
sleep 60 &
echo $! $$ >> "$(dirname "$0")/pids"
wait
"""


def save(folder: Path) -> Path:
    path = folder / "g++"
    path.write_text(SCRIPT)
    path.chmod(0o700)
    return path


def running(compiler: Path) -> list[int]:
    """Return its processes that run: two each time that it was called."""
    pids = compiler.with_name("pids")
    written = pids.read_text().split() if pids.exists() else []
    return [number for number in map(int, written) if _runs(number)]


def _runs(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE  # the test machine's init may reap none
    except psutil.NoSuchProcess:
        return False


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Return whether a condition holds within so many seconds."""
    deadline = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds
