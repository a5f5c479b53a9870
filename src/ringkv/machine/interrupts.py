"""Signals: Ctrl-C that is deferred while code must not be interrupted halfway, and SIGTERM as an exit status."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def defer_interrupts() -> Iterator[list[int]]:
    """Yield a list that a first Ctrl-C is put in, so that no engine step is interrupted; a second raises."""
    pressed: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield pressed
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
    with defer_interrupts() as pressed:
        yield
    if pressed:
        signal.raise_signal(signal.SIGINT)


TERMINATED = 128 + signal.SIGTERM  # exit status, as a shell reports a process that SIGTERM ended


def exit_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit with status 143. The first process of a container would ignore the signal."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
