"""How much memory this process may still take."""

from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")


def available_bytes(cgroup: Path = CGROUP) -> int:
    """What the machine can give without swapping, or what is left of the container's limit if that is less."""
    free = int(psutil.virtual_memory().available)
    limit = limit_bytes(cgroup)
    return free if limit is None else min(free, max(0, limit - _in_use(cgroup)))


def limit_bytes(cgroup: Path = CGROUP) -> int | None:
    """The container's limit (cgroup v2); None where there is none."""
    text = _read(cgroup / "memory.max").strip()
    return int(text) if text.isdigit() else None


def _in_use(cgroup: Path) -> int:
    """Bytes the container holds, but for cached files, which the kernel drops when asked for memory."""
    stat = dict(line.split() for line in _read(cgroup / "memory.stat").splitlines())
    return int(_read(cgroup / "memory.current") or 0) - int(stat.get("inactive_file", 0))


def _read(path: Path) -> str:
    """A file's text; nothing where there is no file."""
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
