"""A lock per file or folder of the cache, and one sentence if the folder cannot be written."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ringkv.base.errors import BadCache
from ringkv.base.progress import Progress
from ringkv.machine import lock
from ringkv.machine.folders import ELSEWHERE, make, reason

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
NO_FOLDER = (errno.ENOTDIR, errno.ENOENT, errno.EEXIST, errno.ENAMETOOLONG)
REMEDIES = {
    **dict.fromkeys(FULL, "free disk space"),
    **dict.fromkeys(READ_ONLY, "make it writable"),
    **dict.fromkeys(NO_FOLDER, "make it a folder"),
}


@contextmanager
def locked(target: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock of `target` while it is written; waits without a timeout.

    Raises BadCache if its folder cannot be written or is full.
    """

    def waiting() -> None:
        progress(0, 0, f"waiting for another ringkv to finish {target.name}")

    with _writing(target.parent):
        make(target.parent)
        with lock.locked(target.with_name(f".{target.name}.lock"), waiting):
            yield


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn the errors of a disk that is full or read-only, and of a path that is no folder, into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno not in REMEDIES:
            raise
        remedy = REMEDIES[error.errno]
        raise BadCache(f"{folder} cannot be written ({reason(error)}); {remedy}, {ELSEWHERE}") from error
