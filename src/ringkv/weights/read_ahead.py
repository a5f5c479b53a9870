"""read_ahead: have a model's weights read into the system's memory while something else, such as torch, is imported.

A start from a cold disk gains most of the reading; one whose files are in memory already spends a copy's time on an
otherwise idle core.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread

CHUNK = 4 << 20  # bytes


def read_ahead(folder: Path) -> Thread:
    """Start reading the directory's safetensors; whoever opens them meanwhile reads what is there."""
    thread = Thread(target=_read, args=(sorted(folder.glob("*.safetensors")),), name="read-ahead", daemon=True)
    thread.start()
    return thread


def _read(paths: Sequence[Path]) -> None:
    # Not posix_fadvise: the system may ignore it, and on Linux it stops at the device's own read-ahead.
    scratch = bytearray(CHUNK)
    for path in paths:
        with suppress(OSError), path.open("rb", buffering=0) as file:
            while file.readinto(scratch):
                pass
