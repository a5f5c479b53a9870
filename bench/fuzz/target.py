"""Target: one kind of input, how it is made, what reads it, and how one case ends in a forked child."""

import faulthandler
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from random import Random
from typing import Any

import psutil

from ringkv.base.errors import RingKVError

MB = 1 << 20
RESERVED_MB = 2048  # address space beyond the memory limit, for stacks that are mostly untouched
POLL = 0.01


@dataclass(frozen=True)
class Target:
    """make: an input from random numbers. run: read the input in the child process. prepare: load what all cases share.

    refusals: errors that `run` may raise. seconds, memory_mb: limits of one case.
    """

    about: str
    make: Callable[[Random], Any]
    run: Callable[[Any], None]
    prepare: Callable[[], object]
    refusals: tuple[type[Exception], ...] = (RingKVError,)
    seconds: float = 10.0
    memory_mb: int = 512

    def case(self, seed: int, number: int) -> Any:
        """Return the input of one case, the same on every call."""
        return self.make(Random(f"{seed} {number}"))


@dataclass(frozen=True)
class Outcome:
    """sentence: how the case ended. grown_mb: memory that it added to the process."""

    is_finding: bool
    sentence: str
    seconds: float
    grown_mb: int = 0


def run_case(target: Target, seed: int, number: int) -> Outcome:
    """Run a case to its end or its limits. `target.prepare` must have been called, and no thread may be running."""
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(target, seed, number, sender))
    began, before = time.monotonic(), _resident_mb(os.getpid())
    child.start()
    sender.close()
    try:
        is_over, largest = _watch(child.pid or 0, receiver, target.seconds)
        seconds, grown = time.monotonic() - began, max(0, largest - before)
        if not is_over:
            return Outcome(True, f"hang: still running after {seconds:.1f} s", seconds, grown)
        return _outcome(target, receiver, child, seconds, grown)
    finally:
        if child.is_alive():
            os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
        receiver.close()


def _outcome(target: Target, receiver: Connection, child, seconds: float, grown: int) -> Outcome:  # type: ignore[no-untyped-def]
    try:
        error, peak = receiver.recv()
    except EOFError:
        child.join()
        return Outcome(True, f"crash: the child ended with status {child.exitcode}", seconds, grown)
    grown = max(grown, peak)
    if error:
        return Outcome(True, f"unexpected exception: {error}", seconds, grown)
    if grown > target.memory_mb:
        return Outcome(True, f"memory: {grown:,} MB, the limit is {target.memory_mb:,} MB", seconds, grown)
    return Outcome(False, "passed", seconds, grown)


def _watch(pid: int, receiver: Connection, limit: float) -> tuple[bool, int]:
    """Wait for the child's message or end. Return whether it came in time, and the largest memory seen in MB."""
    deadline, largest = time.monotonic() + limit, 0
    while time.monotonic() < deadline:
        if receiver.poll(POLL):
            return True, largest
        largest = max(largest, _resident_mb(pid))
    return False, largest


def _child(target: Target, seed: int, number: int, sender: Connection) -> None:
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = psutil.Process().memory_info().vms + (target.memory_mb + RESERVED_MB) * MB
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a panic of a library is reported through its exception
    before, error = _peak_mb(), ""
    case = target.case(seed, number)
    try:
        target.run(case)
    except target.refusals as refused:
        error = "" if "\n" not in str(refused).strip() else f"an error of several lines: {refused!s:.200}"
    except BaseException:
        error = " | ".join(traceback.format_exc().strip().splitlines()[-3:])
    sender.send((error, max(0, _peak_mb() - before)))
    sender.close()
    os._exit(0)


def _resident_mb(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss) // MB
    except psutil.Error:  # it has ended
        return 0


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
