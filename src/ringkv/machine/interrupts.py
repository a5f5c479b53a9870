"""Signals: Ctrl-C that is deferred while code must not be interrupted halfway, and SIGTERM as an exit status."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class InterruptFlag:
    """True once Ctrl-C was pressed."""

    def __init__(self) -> None:
        self.pressed = False

    def __bool__(self) -> bool:
        return self.pressed


@contextmanager
def defer_interrupts() -> Iterator[InterruptFlag]:
    """Set the flag at a first Ctrl-C, so that no engine step is interrupted; a second raises KeyboardInterrupt."""
    flag = InterruptFlag()

    def handle(number: int, frame: FrameType | None) -> None:
        if flag.pressed:
            raise KeyboardInterrupt
        flag.pressed = True

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay a first Ctrl-C to the end of the block; a second raises KeyboardInterrupt at once.

    For imports of large packages: an interrupted import may swallow the interrupt, or leave modules that cannot be
    imported again. Signals go to the main thread, so in other threads this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with defer_interrupts() as flag:
        yield
    if flag:
        signal.raise_signal(signal.SIGINT)


TERMINATED = 128 + signal.SIGTERM  # exit status, as a shell reports a process that SIGTERM ended


def exit_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit with status 143. The first process of a container would ignore the signal."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
