"""Waker: wakes a thread that waits for a descriptor."""

import os
from contextlib import suppress


class Waker:
    """Its descriptor is readable from `wake` to `clear`."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        return self._read

    def wake(self) -> None:
        with suppress(BlockingIOError):  # it is full, so it is readable
            os.write(self._write, b"\0")

    def clear(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)
