"""gently: Ctrl-C that stops an answer at its next token, not the program."""

import signal
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
def gently() -> Iterator[Stop]:
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
