"""Folders of compiled code and downloads: whether they are ours alone and can be written, and their file systems.

Each check returns what is wrong, with the remedy, or None. `base.errors` is a neighbour, so nothing is raised here.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SPARE = 16 << 20  # bytes; less free space is a full disk
PROBE = 64 << 10  # bytes written to find out whether a folder can be written
ELSEWHERE = "or set RINGKV_CACHE to another folder"
IN_MEMORY = ("tmpfs", "ramfs")
_MOUNTS = Path("/proc/self/mounts")


def make_private(folder: Path) -> str | None:
    """Create a folder that only this user can enter, unless it exists. Return why it cannot be used; None if it can.

    Code is loaded from it, so it must belong to this user or to root, and neither its group nor others may write.
    """
    with suppress(OSError):
        make(folder)
    return strangers(folder) if folder.is_dir() else unwritable(folder)


def make(folder: Path) -> None:
    """Create a folder and its parents, unless they exist, so that only this user can enter them. Raises OSError."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give the path of a new file, which replaces the file at `path` at once when the block ends without an error."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield new
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def remove(folder: Path) -> str | None:
    """Delete a folder, unless it is missing. Return why it is still there; None if it is gone."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        if os.path.lexists(folder):
            return f"{folder} cannot be deleted ({reason(error)}); delete it as its owner, {ELSEWHERE}"
    return None


def strangers(folder: Path) -> str | None:
    """Return who else could change a folder's files; None if nobody could."""
    if not hasattr(os, "geteuid"):
        return None
    for status in (folder.lstat(), folder.stat()):  # of a link, and of the folder that it names
        if status.st_uid not in (os.geteuid(), 0):
            return (
                f"{folder} belongs to user {status.st_uid}, and ringkv, as user {os.geteuid()}, would load code from "
                f"it; run `chown -R {os.geteuid()} {folder}` if you trust its files, {ELSEWHERE}"
            )
    if folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(folder.stat().st_mode)
        return (
            f"{folder} has mode {mode:o}, so other users can change the code that ringkv loads from it; delete it, "
            f"run `chmod -R go-w {folder}` if you trust its files, {ELSEWHERE}"
        )
    return None


def unwritable(folder: Path) -> str | None:
    """Return why no file can be written to a folder, which need not exist; None if it can.

    Writes a small file, because permissions alone show neither a read-only file system, nor a quota, nor a full disk.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(PROBE))
        free = shutil.disk_usage(folder).free
    except OSError as error:
        fault = reason(error)
    else:
        if free >= SPARE:
            return None
        fault = f"{free / 1e6:.1f} MB are free, {SPARE / 1e6:.0f} MB are needed"
    return f"{folder} cannot be written ({fault}); free disk space or make it writable, {ELSEWHERE}"


def reason(error: OSError) -> str:
    """Return the system's words for an error: "Read-only file system"."""
    return error.strerror or str(error) or type(error).__name__


def cache_dir() -> Path:
    """Return the directory of downloads and builds.

    It is `$RINGKV_CACHE`, else `$XDG_CACHE_HOME/ringkv`, else `~/.cache/ringkv`.
    """
    if chosen := os.environ.get("RINGKV_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "ringkv"


def file_system(folder: Path) -> str:
    """Return the name of a folder's file system, such as ext4; "" if the system does not say."""
    if not _MOUNTS.is_file():
        return ""
    lines = (line.split(" ") for line in _MOUNTS.read_text(encoding="utf-8").splitlines())
    types = {Path(_unescaped(path)): name for _, path, name, *_ in lines}  # the last mount at a path hides the others
    folder = folder.resolve()
    return next((types[path] for path in (folder, *folder.parents) if path in types), "")


def _unescaped(path: str) -> str:
    """Return a path whose white space and backslashes are written as octal numbers."""
    return path.replace(r"\040", " ").replace(r"\011", "\t").replace(r"\012", "\n").replace(r"\134", "\\")
