"""Output of commands: results on stdout, everything else on stderr."""

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE = 160  # characters
# Colours that stand out from white and from black, because a terminal's background is not known.
OUTCOMES = {"worse": "#c84469", "better": "#148864", "noise": "#707985", "few": "#9f6c07"}
USED, FREE = "#0a78c2", "#6e7783"


def print_json(value: Any) -> None:
    """Print one value as one line of JSON on stdout; dataclasses become objects, paths strings."""
    print(json.dumps(value, default=_plain, ensure_ascii=False), flush=True)


def print_while_read(text: str) -> None:
    """Print a text on stdout, and nothing more once its reader has closed the pipe."""
    try:
        typer.echo(text)
    except BrokenPipeError:
        discard_stdout()


def discard_stdout() -> None:
    """Send what is still to be written to stdout nowhere, so that the interpreter's end does not fail on it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_stderr(line: str) -> None:
    """Print one line on stderr."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def in_pieces() -> Iterator[Callable[[str], None]]:
    """Yield a function that writes a piece to stdout. A line break is written at the end, also after Ctrl-C."""
    written = False

    def write(piece: str) -> None:
        nonlocal written
        written = True
        typer.echo(piece, nl=False)

    try:
        yield write
    finally:
        if written:
            typer.echo()


def console() -> Console:
    """Return a console on stdout without markup, and without colours that are not a text's own; a file gets none.

    A file gets `WIDE` columns.
    """
    return Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else WIDE)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str | Text]], title: str | None = None) -> None:
    """Print a table on stdout; columns whose header ends in a space are right-aligned."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, header_style="bold", pad_edge=False)
    for header in headers:
        right = header.endswith(" ")
        table.add_column(header.strip(), justify="right" if right else "left", overflow="fold")
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(*row)
    console().print(table)


def toned(text: str, tone: str) -> Text:
    """Return a text in the colour of an outcome, bold if there are too few prompts; "" is no outcome."""
    return Text(text, style=f"{'bold ' if tone == 'few' else ''}{OUTCOMES.get(tone, '')}")


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else dataclasses.asdict(value)
