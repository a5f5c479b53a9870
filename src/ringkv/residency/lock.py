"""What comes before a file or folder of the cache is written: a lock, and one sentence if the disk refuses it."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ringkv.base.errors import BadCache, PullFailed
from ringkv.base.progress import Progress
from ringkv.machine import lock
from ringkv.machine.folders import ELSEWHERE, make, reason

REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free disk space"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "make it writable"),
    **dict.fromkeys((errno.ENOTDIR, errno.ENOENT, errno.EEXIST, errno.ENAMETOOLONG), "make it a folder"),
}
SPARE = 64 << 20  # bytes for small files


def need_space(folder: Path, size: int, what: str) -> None:
    """Raise PullFailed unless the disk of `folder`, which exists, has room for `size` bytes."""
    needed, free = size + SPARE, shutil.disk_usage(folder).free
    if free < needed:
        raise PullFailed(
            f"{what} needs {needed / 1e9:.1f} GB in {folder}, {free / 1e9:.1f} GB are free; "
            "free disk space, or set RINGKV_CACHE to a folder on another disk"
        )


@contextmanager
def locked(target: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock of `target` while it is written; waits without a timeout.

    Raises BadCache if its folder cannot be written or is full.
    """

    def waiting() -> None:
        progress(0, 0, f"waiting for another ringkv to finish {target.name}")

    folder = target.parent
    try:
        make(folder)
        with lock.locked(target.with_name(f".{target.name}.lock"), waiting):
            yield
    except OSError as error:
        if error.errno not in REMEDIES:
            raise
        remedy = REMEDIES[error.errno]
        raise BadCache(f"{folder} cannot be written ({reason(error)}); {remedy}, {ELSEWHERE}") from error
