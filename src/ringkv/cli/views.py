"""Two ways to watch one answer: a panel that lives on the terminal, and plain lines for everything else."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.text import Text

from ringkv.base.events import Usage
from ringkv.cli.answering import cache_line

QUARTERS = 4  # lines that tell how far reading is


@dataclass
class Watched:
    """What there is to see of one answer."""

    question: str
    done: int = 0  # prompt tokens read
    total: int = 0
    text: str = ""
    usage: Usage | None = None
    rate: float | None = None  # tokens a second while decoding

    @property
    def status(self) -> str:
        """What the cache holds by now."""
        if self.usage is None:
            return f"reading the prompt: {self.done:,} of {self.total:,} tokens"
        return cache_line(self.usage) + (f" | {self.rate:.1f} tok/s" if self.rate else "")


class View(AbstractContextManager["View"], Protocol):
    def show(self, watched: Watched) -> None:
        """Something has changed."""
        ...


def view(console: Console, question: str) -> View:
    return PanelView(console, question) if console.is_terminal else LineView(console, question)


class PanelView(View):
    """The question on top, the text or a bar inside, the cache at the bottom; it stays when the answer is over."""

    def __init__(self, console: Console, question: str) -> None:
        self._live = Live(self._panel(Watched(question)), console=console, auto_refresh=False)

    def __enter__(self) -> "PanelView":
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def show(self, watched: Watched) -> None:
        self._live.update(self._panel(watched), refresh=True)

    def _panel(self, watched: Watched) -> RenderableType:
        reading = watched.usage is None
        inside = ProgressBar(total=max(1, watched.total), completed=watched.done) if reading else Text(watched.text)
        footer = Text(watched.status, style="cyan")
        return Panel(Group(inside, Text(), footer), title=Text(watched.question, style="bold"), title_align="left")


class LineView(View):
    """A line for each part of the prompt read, the text as it comes, and at its end what the cache holds."""

    def __init__(self, console: Console, question: str) -> None:
        self._console = console
        self._told = 0  # parts of the prompt, or characters of the text
        self._last: Watched | None = None
        console.print(f"\n{question}", soft_wrap=True)

    def __exit__(self, *error: object) -> None:
        if self._last is not None:
            self._console.print(f"\n({self._last.status})", soft_wrap=True)

    def show(self, watched: Watched) -> None:
        if watched.usage is None:
            self._read(watched)
        else:
            self._say(watched)

    def _read(self, watched: Watched) -> None:
        part = QUARTERS * watched.done // max(1, watched.total)
        if part > self._told:
            self._told = part
            self._console.print(f"({watched.status})", soft_wrap=True)

    def _say(self, watched: Watched) -> None:
        if self._last is None:
            self._console.print(f"({watched.status})", soft_wrap=True)
            self._told = 0
        self._last = watched
        self._console.file.write(watched.text[self._told :])
        self._console.file.flush()
        self._told = len(watched.text)
