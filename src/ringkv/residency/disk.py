"""need_space: refuse before a long write that the disk cannot hold."""

import shutil
from pathlib import Path

from ringkv.base.errors import PullFailed

SPARE = 64 << 20  # bytes left for everything small


def need_space(folder: Path, size: int, what: str) -> None:
    """Raise PullFailed unless the existing `folder`'s disk takes `size` more bytes."""
    free = shutil.disk_usage(folder).free
    if free < size + SPARE:
        raise PullFailed(
            f"{what} needs {_gigabytes(size + SPARE)} in {folder}, {_gigabytes(free)} are free; "
            "make room, or set RINGKV_CACHE to a folder on another disk"
        )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
