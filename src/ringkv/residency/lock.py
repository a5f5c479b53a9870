"""A lock per file or folder of the cache: one process makes it, the others wait."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ringkv.base.progress import Progress


@contextmanager
def locked(target: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock of `target`; waits without a timeout. The system releases it if its process is killed."""
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
