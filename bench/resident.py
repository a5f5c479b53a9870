"""resident: the resident memory of a process, from Linux's /proc/PID/smaps.

Pages of mapped files may be shared with other processes, and the kernel may drop them at any time.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Self

SMAPS = Path("/proc/self/smaps")
STATUS = Path("/proc/self/status")
NAMED = 8  # mappings listed


@dataclass(frozen=True)
class Resident:
    """Bytes. own: memory of the process alone (heap, stacks, modified file pages). files: unmodified file pages."""

    total: int
    own: int
    files: int
    largest: dict[str, int]  # file name -> its resident bytes


def resident(smaps: Path = SMAPS) -> Resident:
    return parse(smaps.read_text().splitlines())


def own_bytes(status: Path = STATUS) -> int:
    """Return the bytes of memory that are this process's alone, without unmodified file pages."""
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


class Peak:
    """The most memory of its own that this process gains while it is open."""

    def __enter__(self) -> Self:
        self._before = self._most = own_bytes()
        self._ended = Event()
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._ended.wait(0.002):
            self._most = max(self._most, own_bytes())

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def bytes(self) -> int:
        return self._most - self._before


def parse(lines: Iterable[str]) -> Resident:
    """Parse /proc/PID/smaps: a line per mapping, `from-to rights offset device inode path`, then its fields in kB."""
    by_file: Counter[str] = Counter()
    total = own = 0
    name, pages = "", 0
    for line in lines:
        key, *rest = line.split()
        if not key.endswith(":"):
            name = Path(rest[-1]).name if len(rest) == 5 and rest[-1].startswith("/") else ""
        elif key == "Rss:":
            pages = int(rest[0]) * 1024
            total += pages
        elif key == "Anonymous:":
            own += int(rest[0]) * 1024
            if name:
                by_file[name] += pages - int(rest[0]) * 1024
    return Resident(total, own, total - own, dict(by_file.most_common(NAMED)))
