"""The application: which commands there are, and one command line from its first word to its exit status.

Nothing here or in a command's module loads torch: a command does, once it runs.
"""

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from ringkv.base.version import VERSION
from ringkv.cli.commands.bench import bench
from ringkv.cli.commands.chat import chat
from ringkv.cli.commands.demo import demo
from ringkv.cli.commands.doctor import doctor
from ringkv.cli.commands.eval import study
from ringkv.cli.commands.generate import generate
from ringkv.cli.commands.models import models
from ringkv.cli.commands.plan import plan
from ringkv.cli.commands.pull import pull
from ringkv.cli.commands.serve import serve
from ringkv.cli.failures import INTERRUPTED, complain, guarded, show_warnings
from ringkv.cli.options import SWITCH
from ringkv.cli.spread import spread

PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Ask a model": (generate, chat, serve, demo),
    "Get models": (pull, models),
    "Know before you run": (plan, study, bench, doctor),
}


def run(arguments: Sequence[str]) -> int:
    """Run one command line to its exit status; all it said is flushed."""
    _speak_any_language()
    show_warnings()
    status = guarded(lambda: _command(arguments))
    if status == INTERRUPTED:
        complain("interrupted")
    return status


def _command(arguments: Sequence[str]) -> int | None:
    status: int | None = app(list(arguments) or ["--help"], prog_name="ringkv", standalone_mode=False)
    sys.stdout.flush()  # here, where a reader that has gone is no surprise
    return status


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ringkv {VERSION}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", metavar=SWITCH, callback=_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Long-context language models in a fixed amount of key-value memory per request.

    A request's cache holds its budget and no more, however long the prompt: the tokens that matter are selected at the
    end of prefill (SnapKV), and while decoding the newest overwrite the oldest in a ring buffer (StreamingLLM).

        ringkv demo
        ringkv generate --kv-budget 512 --prompt-file BIG.txt "What is this about?"
        ringkv serve --model smollm2 --slots 8
    """


def _help(command: Callable[..., Any]) -> str:
    """A docstring as help: paragraphs flow to the terminal's width, indented lines stay lines."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(one if one.startswith(" ") else one.replace("\n", " ") for one in paragraphs)


def name_of(command: Callable[..., Any]) -> str:
    """That of its file."""
    return command.__module__.rpartition(".")[2]


def _speak_any_language() -> None:
    """A terminal that lacks a character gets a replacement, not an error."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")


def _application() -> typer.Typer:
    made = typer.Typer(
        name="ringkv",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback(help=_help(_root))(_root)
    for panel, commands in PANELS.items():
        for command in commands:
            made.command(name_of(command), help=_help(command), rich_help_panel=panel)(spread(command))
    return made


app = _application()
