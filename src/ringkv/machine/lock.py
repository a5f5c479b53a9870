"""A lock per file or folder of the cache: one process makes it, the others wait."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path`; call `on_wait` once if another process holds it. Waits without a timeout.

    The system releases the lock if its process is killed. Raises OSError if the file cannot be written.
    """
    lock = FileLock(path)
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        on_wait()
        held = lock.acquire()
    with held:
        yield
