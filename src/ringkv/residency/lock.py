"""locked: one process at a time makes a file or folder of the cache; the others wait and then find it made."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ringkv.base.progress import Progress


@contextmanager
def locked(target: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock of `target`, waiting as long as it takes; the system frees it if its holder is killed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target.with_name(f".{target.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(0, 0, f"waiting for another ringkv to finish {target.name}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
