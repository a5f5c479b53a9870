"""How much more memory this process may allocate."""

from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")


def available_bytes(cgroup: Path = CGROUP) -> int:
    """Bytes available without swapping, or below the container's limit if that is less."""
    free = int(psutil.virtual_memory().available)
    limit = limit_bytes(cgroup)
    return free if limit is None else min(free, max(0, limit - _in_use(cgroup)))


def limit_bytes(cgroup: Path = CGROUP) -> int | None:
    """The container's limit (cgroup v2); None if there is no limit."""
    text = _read(cgroup / "memory.max").strip()
    return int(text) if text.isdigit() else None


def _in_use(cgroup: Path) -> int:
    """Bytes that the container uses, except cached files, which the kernel drops if memory is needed."""
    stat = dict(line.split() for line in _read(cgroup / "memory.stat").splitlines())
    return int(_read(cgroup / "memory.current") or 0) - int(stat.get("inactive_file", 0))


def _read(path: Path) -> str:
    """A file's text; "" if there is no file."""
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
