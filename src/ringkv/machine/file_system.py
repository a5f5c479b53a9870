"""file_system: the kind of file system that a folder is on."""

from pathlib import Path

IN_MEMORY = ("tmpfs", "ramfs")
_MOUNTS = Path("/proc/self/mounts")


def file_system(folder: Path) -> str:
    """Return its name, such as ext4; "" if the system does not say."""
    if not _MOUNTS.is_file():
        return ""
    lines = (line.split(" ") for line in _MOUNTS.read_text(encoding="utf-8").splitlines())
    types = {Path(_unescaped(path)): name for _, path, name, *_ in lines}  # the last mount at a path hides the others
    folder = folder.resolve()
    return next((types[path] for path in (folder, *folder.parents) if path in types), "")


def _unescaped(path: str) -> str:
    """Return a path whose white space and backslashes are written as octal numbers."""
    return path.replace(r"\040", " ").replace(r"\011", "\t").replace(r"\012", "\n").replace(r"\134", "\\")
