"""The typer application: its commands, and `run` for one command line.

Importing this module or a command's module does not load torch; running a command does.
"""

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import ArgumentInfo

from ringkv.base.version import VERSION
from ringkv.cli.commands.bench import bench
from ringkv.cli.commands.chat import chat
from ringkv.cli.commands.compare import compare
from ringkv.cli.commands.demo import demo
from ringkv.cli.commands.doctor import doctor
from ringkv.cli.commands.eval import evaluate
from ringkv.cli.commands.generate import generate
from ringkv.cli.commands.models import models
from ringkv.cli.commands.plan import plan
from ringkv.cli.commands.profile import profile
from ringkv.cli.commands.pull import pull
from ringkv.cli.commands.rotate import rotate
from ringkv.cli.commands.serve import serve
from ringkv.cli.failures import INTERRUPTED, guarded, print_error, show_warnings
from ringkv.cli.options import SWITCH
from ringkv.cli.spread import spread

OPTION = "model"


class ModelCommand(TyperCommand):
    """A command that has --model and no arguments of its own, so arguments are models."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a command line. Fails if models are given in both ways, or several to a command that takes one."""
        ctx.allow_extra_args = True
        models = super().parse_args(ctx, args)
        if models and ctx.get_parameter_source(OPTION).name == "COMMANDLINE":
            ctx.fail(f"{' '.join(models)} is a second model beside --model; give all with --model")
        if len(models) > 1 and not self._takes_several():
            ctx.fail(f"the command takes one model; leave out {' '.join(models[1:])}")
        if models:
            ctx.params[OPTION] = models if self._takes_several() else models[0]
        ctx.args = []
        return []

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[MODEL]..." if self._takes_several() else "[MODEL]"]

    def _takes_several(self) -> bool:
        return any(option.name == OPTION and getattr(option, "multiple", False) for option in self.params)


PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Run a model": (generate, chat, serve, compare, demo),
    "Get models": (pull, models, rotate),
    "Plan and measure": (plan, evaluate, bench, profile, doctor),
}


def run(arguments: Sequence[str]) -> int:
    """Run one command line, flush its output and return its exit status."""
    for stream in (sys.stdout, sys.stderr):  # print a replacement for what the terminal cannot encode
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")
    show_warnings()

    def command() -> int | None:
        status: int | None = app(list(arguments) or ["--help"], prog_name="ringkv", standalone_mode=False)
        sys.stdout.flush()  # inside `guarded`, which handles a closed pipe
        return status

    status = guarded(command)
    if status == INTERRUPTED:
        print_error("interrupted")
    return status


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"ringkv {VERSION}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", metavar=SWITCH, callback=_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Serve long-context language models with a fixed amount of KV cache per request.

    A request's cache never exceeds its budget, however long the prompt. At the end of prefill the most attended tokens
    are selected (SnapKV); while decoding, the newest tokens overwrite the oldest in a ring buffer (StreamingLLM).

        ringkv demo
        ringkv generate --kv-budget 512 --prompt-file BIG.txt "What is this about?"
        ringkv serve smollm2 --slots 8
    """


def _help(command: Callable[..., Any]) -> str:
    """Return the docstring as help text: paragraphs are joined into one line, indented lines are kept."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(text if text.startswith(" ") else text.replace("\n", " ") for text in paragraphs)


def name_of(command: Callable[..., Any]) -> str:
    """Return the command's name, which is its module's."""
    return command.__module__.rpartition(".")[2]


def _class(command: Callable[..., None]) -> type[TyperCommand]:
    """Return the class of a command: one whose arguments are models, if it has --model and no arguments."""
    hints = get_type_hints(command, include_extras=True)
    has_arguments = any(isinstance(declared, ArgumentInfo) for hint in hints.values() for declared in get_args(hint))
    return ModelCommand if OPTION in hints and not has_arguments else TyperCommand


def _application() -> typer.Typer:
    application = typer.Typer(
        name="ringkv",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    application.callback(help=_help(_root))(_root)
    for panel, commands in PANELS.items():
        for command in commands:
            flat = spread(command)
            application.command(name_of(command), cls=_class(flat), help=_help(command), rich_help_panel=panel)(flat)
    return application


app = _application()
