"""Exit statuses, and one line on stderr for each error.

0  success        1  failure        2  invalid arguments or request        130  interrupted
143  terminated by SIGTERM before it was ready
"""

import logging
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

import typer

from ringkv.base.errors import InvalidRequest, RingKVError, UnknownModel
from ringkv.base.failure import in_short
from ringkv.base.log_lines import is_json, json_line
from ringkv.base.sampling import SamplingParams
from ringkv.cli.foreign_flags import hint
from ringkv.cli.output import discard_stdout
from ringkv.plan.report import PlanRequest

FAILED, MISUSED, INTERRUPTED = 1, 2, 130

# typer raises this for invalid arguments. Its module differs between versions of typer, so it is taken from a subclass.
UsageError = typer.BadParameter.__base__ or typer.BadParameter

NEAR = 0.8  # similarity of an option that is suggested; typer's own suggestions are seldom what was meant

# Replacements in typer's messages.
_REPLACEMENTS = (
    (r" \(Possible options: [^)]*\)", ""),
    (r"[Gg]ot unexpected extra argument(?:s|\(s\))? \((.*)\)", r"unexpected \1"),
    (r"Input should be a valid integer.*", "give a whole number"),
    (r"Input should be a valid number.*", "give a number"),
)
_FLAGS = {"prompt_tokens": "--max-prompt", "output_tokens": "--max-output"}
_NAMES = {field.name for kind in (SamplingParams, PlanRequest) for field in fields(kind)}


class InvalidSettings(InvalidRequest):
    """A file or a variable of the environment has an invalid option. The text names it as it is written there."""


def guarded(run: Callable[[], int | None]) -> int:
    """Call `run`, print any error and return the exit status. `RINGKV_DEBUG=1` also prints tracebacks."""
    try:
        return run() or 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        discard_stdout()
        return FAILED
    except Exception as error:
        if debugging():
            traceback.print_exc()
        print_error(sentence(error))
        return MISUSED if isinstance(error, (InvalidRequest, UnknownModel, UsageError)) else FAILED


def print_error(message: str) -> None:
    line = json_line("error", message) if is_json() else f"ringkv: {message}"
    print(line, file=sys.stderr, flush=True)


def debugging() -> bool:
    return os.environ.get("RINGKV_DEBUG", "") not in ("", "0")


def sentence(error: Exception) -> str:
    """Return the error as one line; option names are written as flags."""
    if isinstance(error, InvalidSettings):
        return str(error)
    if isinstance(error, RingKVError):
        return _in_flags(str(error), getattr(error, "param", None))
    if isinstance(error, UsageError):
        return _usage(error)
    if isinstance(error, MemoryError):
        return "the machine ran out of memory; use fewer --slots, a smaller --kv-budget or a shorter --max-prompt"
    return f"unexpected {in_short(error)} (RINGKV_DEBUG=1 shows where)"


def _usage(error: Any) -> str:
    """Return typer's message in lower case without its full stop, with a pointer to --help."""
    message = reworded(error.format_message().rstrip("."))
    if instead := _instead(error):
        message = instead
    elif near := get_close_matches(
        getattr(error, "option_name", ""), getattr(error, "possibilities", None) or (), 1, NEAR
    ):
        message += f". Did you mean {near[0]}?"
    if message.startswith("unexpected ") and any(option.name == "model" for option in error.ctx.command.params):
        message += "; name a model with --model"
    end = " See" if message.endswith("?") else "; see"
    return f"{message[:1].lower()}{message[1:]}{end} {error.ctx.command_path if error.ctx else 'ringkv'} --help"


def _instead(error: Any) -> str | None:
    """Return what to give instead of a flag of another engine or command; else None."""
    # Of -ngl the parser reports -n; the error that it was handling then has the whole word.
    flag = getattr(error.__context__, "option_name", "") or getattr(error, "option_name", "")
    options = error.ctx.command.params if error.ctx else ()
    known = {name for option in options for name in (*option.opts, *option.secondary_opts)}
    instead = None if flag in known else hint(flag, known)
    return instead and f"no such option: {flag}; {instead}"


def reworded(message: str) -> str:
    """Return typer's message in our words."""
    for pattern, replacement in _REPLACEMENTS:
        message = re.sub(pattern, replacement, message)
    return message


def _in_flags(message: str, param: str | None) -> str:
    """Replace option names by flags: `kv_budget` by --kv-budget, `weights="int4"` by --weights int4."""
    given = rf'\b({"|".join(_NAMES)})="(\w+)"'
    message = re.sub(given, lambda match: f"{_flag(match[1])} {match[2]}", message)
    named = re.sub(r'(?<!")\b[a-z]+(?:_[a-z]+)+\b(?!")', lambda match: _flag(match[0]), message)
    return re.sub(rf"^{re.escape(param)}\b", _flag(param), named) if param else named


def _flag(name: str) -> str:
    """Return the flag of an option, or the name itself if it is not an option."""
    return _FLAGS.get(name, "--" + name.replace("_", "-")) if name in _NAMES else name


class _OneLine(logging.Formatter):
    """Formats a record as one line; tracebacks are included only if RINGKV_DEBUG is set."""

    def formatException(self, ei: object) -> str:
        return super().formatException(ei) if debugging() else ""  # type: ignore[arg-type]

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).rstrip("\n")


def show_warnings() -> None:
    """Print log records of the `ringkv` loggers on stderr, prefixed like errors."""
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("ringkv: %(message)s"))
    logger = logging.getLogger("ringkv")
    logger.handlers = [handler]
