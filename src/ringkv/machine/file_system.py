"""file_system: the kind of file system that a folder is on."""

from pathlib import Path

IN_MEMORY = ("tmpfs", "ramfs")
_MOUNTS = Path("/proc/self/mounts")


def file_system(folder: Path) -> str:
    """Return its name, such as ext4; "" if the system does not say."""
    if not _MOUNTS.is_file():
        return ""
    lines = (line.split(" ") for line in _MOUNTS.read_text(encoding="utf-8").splitlines())
    kinds = {Path(_unescaped(place)): kind for _, place, kind, *_ in lines}  # of one place, the last mount hides others
    at = folder.resolve()
    return next((kinds[place] for place in (at, *at.parents) if place in kinds), "")


def _unescaped(place: str) -> str:
    """Return a path whose white space and backslashes are written as octal numbers."""
    return place.replace(r"\040", " ").replace(r"\011", "\t").replace(r"\012", "\n").replace(r"\134", "\\")
