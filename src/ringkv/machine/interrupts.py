"""Ctrl-C where it must not break off what is being done: it is noted, and acted on afterwards."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """True once Ctrl-C was pressed."""

    def __init__(self) -> None:
        self.pressed = False

    def __bool__(self) -> bool:
        return self.pressed


@contextmanager
def defer_interrupts() -> Iterator[Stop]:
    """Inside, a first Ctrl-C is only noted: the engine is never left in the middle of a step. A second ends all."""
    stop = Stop()

    def note(number: int, frame: FrameType | None) -> None:
        if stop.pressed:
            raise KeyboardInterrupt
        stop.pressed = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Inside, a first Ctrl-C waits for the end; a second raises KeyboardInterrupt at once.

    For imports of large packages: one that is broken off may swallow the interrupt, or leave modules that cannot be
    imported again. Signals go to the main thread, so in others there is nothing to do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with defer_interrupts() as stop:
        yield
    if stop:
        signal.raise_signal(signal.SIGINT)
