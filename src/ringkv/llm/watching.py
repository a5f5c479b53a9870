"""watching: long work seen on stderr: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ringkv.plan.units import show_bytes

LINE_S = 10.0  # between two lines about the same work
COUNTED = 1_000_000  # totals from here on are bytes; steps and the tokens of a prompt are fewer


class Watcher(Protocol):
    """A `base.progress.Progress` that can be told to get out of the way."""

    def __call__(self, done: int, total: int, what: str) -> None: ...

    def stop(self) -> None:
        """Leave the terminal to others; what is reported from now on is not shown."""
        ...


@contextmanager
def watching() -> Iterator[Watcher]:
    console = Console(stderr=True, markup=False, highlight=False)
    watcher: Watcher = Bar(console) if console.is_terminal else Lines(console)
    try:
        yield watcher
    finally:
        watcher.stop()


def amount(done: int, total: int) -> str:
    """What of the work is done, in words; nothing at its start, or where its size is not known."""
    if total <= 1 or done == 0:
        return ""
    return f"{show_bytes(done)} of {show_bytes(total)}" if total >= COUNTED else f"{done:,} of {total:,}"


class Bar:
    """One bar for whatever is being done now; it disappears at the end."""

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


class Lines:
    """A line when something begins, and every `LINE_S` seconds while it lasts."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._what: str | None = None
        self._said = 0.0
        self._stopped = False

    def __call__(self, done: int, total: int, what: str) -> None:
        now = time.monotonic()
        if self._stopped or (what == self._what and now < self._said + LINE_S):
            return
        self._what, self._said = what, now
        self._console.print(f"{what} {amount(done, total)}".rstrip(), soft_wrap=True)

    def stop(self) -> None:
        self._stopped = True
