"""How the command line ends: an exit status, and one sentence on stderr for whatever went wrong.

0  done        1  ringkv could not        2  the user asked for what cannot be        130  interrupted
"""

import logging
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import typer

from ringkv.base.errors import InvalidRequest, RingKVError, UnknownModel
from ringkv.base.failure import in_short
from ringkv.base.sampling import SamplingParams
from ringkv.plan.options import Options
from ringkv.plan.report import Question

FAILED, MISUSED, INTERRUPTED = 1, 2, 130

# What typer raises for arguments that it cannot read; its own base class has moved between its versions.
UsageError = typer.BadParameter.__base__ or typer.BadParameter

# What it says and what we say instead: its options that are alike are seldom what was meant.
_IN_OURS = (
    (r" \(Possible options: [^)]*\)", ""),
    (r"Input should be a valid integer.*", "give a whole number"),
    (r"Input should be a valid number.*", "give a number"),
)
_FLAGS = {
    "prompt_tokens": "--max-prompt",
    "output_tokens": "--max-output",
    "tensor_parallel": "--tp",
    "budget": "--kv-budget",
}
_NAMES = {one.name for kind in (Options, SamplingParams, Question) for one in fields(kind)}


def guarded(run: Callable[[], int | None]) -> int:
    """Run to its end and return the exit status, whatever happens. `RINGKV_DEBUG=1` shows tracebacks too."""
    try:
        return run() or 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if debugging():
            traceback.print_exc()
        complain(sentence(error))
        return MISUSED if isinstance(error, (InvalidRequest, UnknownModel, UsageError)) else FAILED


def complain(sentence: str) -> None:
    print(f"ringkv: {sentence}", file=sys.stderr, flush=True)


def debugging() -> bool:
    return os.environ.get("RINGKV_DEBUG", "") not in ("", "0")


def sentence(error: Exception) -> str:
    """What went wrong, with options as they are typed."""
    if isinstance(error, RingKVError):
        return _in_flags(str(error), getattr(error, "param", None))
    if isinstance(error, UsageError):
        return _usage(error)
    if isinstance(error, MemoryError):
        return "the machine ran out of memory; ask for fewer --slots, a smaller --kv-budget or a shorter --max-prompt"
    return f"unexpected {in_short(error)} (RINGKV_DEBUG=1 shows where)"


def _usage(error: Any) -> str:
    """typer's sentence, begun as ours are and without its full stop."""
    said = error.format_message().rstrip(".")
    for theirs, ours in _IN_OURS:
        said = re.sub(theirs, ours, said)
    end = " See" if said.endswith("?") else "; see"
    return f"{said[:1].lower()}{said[1:]}{end} {error.ctx.command_path if error.ctx else 'ringkv'} --help"


def _in_flags(message: str, param: str | None) -> str:
    """The same sentence with options as they are typed: `kv_budget` and `weights="int4"` become flags."""
    given = rf'\b({"|".join(_NAMES)})="(\w+)"'
    message = re.sub(given, lambda found: f"{_flag(found[1])} {found[2]}", message)
    named = re.sub(r"\b[a-z]+(?:_[a-z]+)+\b", lambda found: _flag(found[0]), message)
    return re.sub(rf"^{re.escape(param)}\b", _flag(param), named) if param else named


def _flag(name: str) -> str:
    """The name itself where it is not an option's."""
    return _FLAGS.get(name, "--" + name.replace("_", "-")) if name in _NAMES else name


class _OneLine(logging.Formatter):
    """A traceback is for those who ask for it."""

    def formatException(self, ei: object) -> str:
        return super().formatException(ei) if debugging() else ""  # type: ignore[arg-type]

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).rstrip("\n")


def show_warnings() -> None:
    """Let what our rooms log reach stderr as lines of ours."""
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("ringkv: %(message)s"))
    ours = logging.getLogger("ringkv")
    ours.handlers = [handler]
