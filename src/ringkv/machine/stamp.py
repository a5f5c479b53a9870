"""stamp: size, times and inode of a sealed folder's files, when their digests were last right.

stamp.json   {"model.safetensors": [bytes, mtime in ns, ctime in ns, inode]}

Comparing stamps costs a few microseconds a file, computing digests a second for two gigabytes. So digests are computed
only if a stamp differs. Bits that change without the system's knowledge, on a failing disk, are found by digests alone.
"""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ringkv.machine.seal import broken

STAMP = "stamp.json"


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
    part = folder / f".{STAMP}.{os.getpid()}"
    part.write_text(json.dumps(stamps, indent=1) + "\n", encoding="utf-8")
    part.replace(folder / STAMP)


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
                stamps[path.name] = _of(path.stat())
    return stamps


def _of(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
