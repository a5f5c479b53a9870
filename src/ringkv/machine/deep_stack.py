"""DeepStack: one thread with a large stack, for libraries that recurse as deep as their input."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
_setting = threading.Lock()  # the stack size of new threads is a setting of the whole process


class DeepStack:
    """Runs calls one after another. size: bytes of address space; memory is only what a call uses.

    The thread starts with the first call.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._executor = ThreadPoolExecutor(1, name)

    def submit(self, call: Callable[..., T], *args: object) -> "Future[T]":
        with _setting:
            before = threading.stack_size(self._size)
            try:
                return self._executor.submit(call, *args)
            finally:
                threading.stack_size(before)
