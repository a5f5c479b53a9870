"""show_progress: progress of long work on stderr: a bar on a terminal, else plain lines."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ringkv.plan.units import show_bytes

LINE_S = 10.0  # seconds between two lines for the same work
LEAST_BYTES = 1_000_000  # a total from here on is in bytes; steps and prompt tokens are fewer


class ProgressDisplay(Protocol):
    """A `base.progress.Progress` that can be stopped."""

    def __call__(self, done: int, total: int, what: str) -> None: ...

    def stop(self) -> None:
        """Release the terminal; later reports are not shown."""
        ...


@contextmanager
def show_progress(console: Console | None = None) -> Iterator[ProgressDisplay]:
    """Give a display that reports progress, on stderr by default; it stops at the end of the block."""
    console = console or Console(stderr=True, markup=False, highlight=False)
    display: ProgressDisplay = ProgressBar(console) if console.is_terminal else ProgressLines(console)
    try:
        yield display
    finally:
        display.stop()


def amount(done: int, total: int) -> str:
    """Return the progress as text; empty at the start, or if the total is unknown."""
    if total <= 1 or done == 0:
        return ""
    return f"{show_bytes(done)} of {show_bytes(total)}" if total >= LEAST_BYTES else f"{done:,} of {total:,}"


class ProgressBar:
    """One bar for the current work; it disappears at the end."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=None, amount="")
        self._what: str | None = None
        self._bar.start()

    def __call__(self, done: int, total: int, what: str) -> None:
        if what != self._what:
            self._what = what
            self._bar.reset(self._task, description=what)
        self._bar.update(self._task, completed=done, total=total if total > 1 else None, amount=amount(done, total))

    def stop(self) -> None:
        self._bar.stop()


class ProgressLines:
    """Prints a line when new work begins, then one every `LINE_S` seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._what: str | None = None
        self._printed_at = 0.0
        self._stopped = False

    def __call__(self, done: int, total: int, what: str) -> None:
        now = time.monotonic()
        if self._stopped or (what == self._what and now < self._printed_at + LINE_S):
            return
        self._what, self._printed_at = what, now
        self._console.print(f"{what} {amount(done, total)}".rstrip(), soft_wrap=True)

    def stop(self) -> None:
        self._stopped = True
