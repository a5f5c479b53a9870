"""Guide processes with short limits, and waiting for what processes do."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

from ringkv.text.guide_processes import GuideProcesses
from ringkv.text.tokenizer import Tokenizer

VOCAB = 300
FOREVER = 3600.0  # seconds of processor time that no test takes
NESTED = "(" * 60_000 + "a" + ")" * 60_000  # a regular expression that takes minutes


def running(tokens: Tokenizer, compiling: float, masking: float) -> Iterator[GuideProcesses]:
    guides = GuideProcesses(lambda: tokens, VOCAB, compiling, masking)
    yield guides
    guides._program._stop()  # a traceback of a failed test may keep them


def forked(parent: int) -> list[int]:
    """Return the processes of a parent that have not ended."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent and fields[0] != "Z":
                found.append(int(folder.name))
    return found


def exists(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def program_of(guides: GuideProcesses) -> int:
    """Return the process that forks the processes of these guides. Those of other tests do not count."""
    started = guides._program._stop.peek()
    assert started
    return started[2][1].pid


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition however slow the machine is; the test's time limit ends one that never holds."""
    while not condition():
        time.sleep(0.01)


def waited(event: Event) -> None:
    assert event.wait(60)
