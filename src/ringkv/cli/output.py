"""Where a command's words go: results to stdout, everything said about them to stderr."""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

WIDE = 160  # characters


def print_json(value: Any) -> None:
    """One value on one line of stdout; dataclasses and paths are made plain."""
    print(json.dumps(value, default=_plain, ensure_ascii=False), flush=True)


def say(line: str) -> None:
    """One line on stderr."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def in_pieces() -> Iterator[Callable[[str], None]]:
    """Print to stdout in pieces, as they come. However it ends, by Ctrl-C too, what follows begins on a new line."""
    begun = False

    def write(piece: str) -> None:
        nonlocal begun
        begun = True
        typer.echo(piece, nl=False)

    try:
        yield write
    finally:
        if begun:
            typer.echo()


def console() -> Console:
    """stdout, where text is text: brackets are no markup, numbers are not coloured. Files have room for wide tables."""
    return Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else WIDE)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """A table on stdout; columns whose name ends in a space are numbers, and align right."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, header_style="bold", pad_edge=False)
    for header in headers:
        right = header.endswith(" ")
        table.add_column(header.strip(), justify="right" if right else "left", overflow="fold")
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(*row)
    console().print(table)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
