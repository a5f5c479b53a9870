"""Check free disk space before a long write."""

import shutil
from pathlib import Path

from ringkv.base.errors import PullFailed

SPARE = 64 << 20  # bytes for small files


def need_space(folder: Path, size: int, what: str) -> None:
    """Raise PullFailed unless the disk of `folder`, which exists, has room for `size` bytes."""
    free = shutil.disk_usage(folder).free
    if free < size + SPARE:
        raise PullFailed(
            f"{what} needs {_gigabytes(size + SPARE)} in {folder}, {_gigabytes(free)} are free; "
            "free disk space, or set RINGKV_CACHE to a folder on another disk"
        )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
