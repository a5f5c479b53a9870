"""read_ahead: reads a model's weights into the page cache while other work, such as importing torch, goes on.

A start from a cold disk saves most of the reading time. If the files are cached already, it costs one copy of them on
an otherwise idle core.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread

CHUNK = 4 << 20  # bytes


def read_ahead(folder: Path) -> Thread:
    """Start reading the directory's safetensors in a thread; files opened meanwhile use the pages that are cached."""
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
