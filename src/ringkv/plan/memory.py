"""How much more memory this process may allocate."""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import psutil

ROOT, LISTING = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
UNLIMITED = 1 << 60  # bytes; version 1 writes "no limit" as a number just below 2^63


class Files(NamedTuple):
    """Names of a group's files, and of the cached files in its statistics, which the kernel drops if it must."""

    limit: str
    usage: str
    cached: str


FILES: Mapping[int, Files] = {  # by version of cgroups
    1: Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: Files("memory.max", "memory.current", "inactive_file"),
}


def available_bytes(root: Path = ROOT, listing: Path = LISTING) -> int:
    """Bytes available without swapping, or below the lowest limit of this process's groups."""
    free = int(psutil.virtual_memory().available)
    return max(0, min([free, *(limit - _in_use(folder, files) for folder, files, limit in _limits(root, listing))]))


def limit_bytes(root: Path = ROOT, listing: Path = LISTING) -> int | None:
    """The lowest limit of the groups of this process; None if there is none."""
    return min((limit for *_, limit in _limits(root, listing)), default=None)


def _limits(root: Path, listing: Path) -> Iterator[tuple[Path, Files, int]]:
    """Yield the folders of this process's groups that have a limit, with the names of their files and the limit.

    A group's parents limit it too. In a container the listing may name a path outside it; `root` is its group then.
    """
    for line in [*_read(listing).splitlines(), "0::/"]:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            top, files = (root / controllers, FILES[1]) if controllers else (root, FILES[2])
            inner = PurePosixPath(path.lstrip("/"))
            for group in (inner, *inner.parents):
                text = _read(top / group / files.limit).strip()
                if text.isdigit() and int(text) < UNLIMITED:
                    yield top / group, files, int(text)


def _in_use(folder: Path, files: Files) -> int:
    stat = dict(line.split() for line in _read(folder / "memory.stat").splitlines())
    return int(_read(folder / files.usage) or 0) - int(stat.get(files.cached, 0))


def _read(path: Path) -> str:
    """A file's text; "" if there is no file."""
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
