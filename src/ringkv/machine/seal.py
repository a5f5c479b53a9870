"""seal: sizes and sha256 digests of generated files, stored beside them, so that a change on disk is noticed.

    seal.json    {"graph.so": {"bytes": 81232, "sha256": "..."}}
    stamp.json   {"model.safetensors": [bytes, mtime in ns, ctime in ns, inode]}, when digests were last right

Comparing stamps costs a few microseconds a file, computing digests a second for two gigabytes. So digests of a folder
with stamps are computed only if a stamp differs. Digests alone notice bits that change without the system's knowledge,
on a failing disk.
"""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ringkv.machine.folders import replacing

SEAL, STAMP = "seal.json", "stamp.json"


def seal(folder: Path) -> None:
    """Write the sizes and digests of a folder's files. Call it before the folder gets its final name."""
    paths = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name != SEAL]
    files = {path.name: {"bytes": path.stat().st_size, "sha256": digest(path)} for path in paths}
    (folder / SEAL).write_text(json.dumps(files, indent=1) + "\n", encoding="ascii")


def broken(folder: Path) -> str | None:
    """Return which file is not as it was sealed, and how; None if all are. Reads every file that has the right size."""
    try:
        files = json.loads((folder / SEAL).read_bytes())
        return next((fault for name, want in files.items() if (fault := _fault(folder / name, want))), None)
    except (OSError, ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
        return f"{SEAL} cannot be read ({error})"


def _fault(path: Path, want: dict[str, str | int]) -> str | None:
    if not path.is_file():
        return f"{path.name} is missing"
    if (size := path.stat().st_size) != want["bytes"]:
        return f"{path.name} has {size:,} bytes instead of {want['bytes']:,}"
    return None if digest(path) == want["sha256"] else f"{path.name} has changed bytes (its sha256 differs)"


def digest(path: Path) -> str:
    """Return a file's sha256. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stamp(folder: Path) -> None:
    """Write the stamps of the folder's files, which are as they were sealed."""
    _write(folder, _stamps(folder))


def changed(folder: Path, on_verify: Callable[[], object]) -> str | None:
    """Return which file is not as it was sealed, and how; None if all are.

    If a file was touched since the last time, calls `on_verify` and computes the digests of all.
    """
    stamps = _stamps(folder)  # before the digests, so that a file that changes meanwhile is not taken for verified
    if stamps == _written(folder):
        return None
    on_verify()
    fault = broken(folder)
    if fault is None:
        with suppress(OSError):  # a folder that is read-only is verified on every start
            _write(folder, stamps)
    return fault


def _write(folder: Path, stamps: dict[str, list[int]]) -> None:
    with replacing(folder / STAMP) as new:
        new.write_text(json.dumps(stamps, indent=1) + "\n", encoding="utf-8")


def _written(folder: Path) -> Any:
    """Return the content of stamp.json; None if it cannot be read."""
    try:
        return json.loads((folder / STAMP).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _stamps(folder: Path) -> dict[str, list[int]]:
    """Return the stamps of all files, the seal included; without those that vanish meanwhile."""
    stamps = {}
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            if STAMP not in path.name:
                status = path.stat()
                stamps[path.name] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    return stamps
