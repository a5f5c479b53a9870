"""startup: the time from `ringkv generate` on the command line to its first token, beside only importing torch.

    python -m bench.startup                         SmolLM2, 10 runs of each, alternating

A warm-up run, not counted, pulls the model and compiles its graphs if that has not been done.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from bench.arguments import command_line
from bench.results import children_seconds, keep, table
from bench.serving import RINGKV

QUESTION = "What is the capital of France?"
FLOOR = (sys.executable, "-c", "import torch; print('imported', flush=True)")
SHOWN = ("first_s", "best_s", "whole_s", "cpu_s")


class CommandTimes(NamedTuple):
    """Seconds of one process: until its first output byte, until it ended, and of CPU time."""

    first_s: float
    whole_s: float
    cpu_s: float


def main() -> None:
    args = command_line(__doc__, model="smollm2", runs=10).parse_args()
    commands = {
        "import torch": FLOOR,
        "ringkv generate": (str(RINGKV), "generate", "--model", args.model, "--max-tokens", "1", QUESTION),
    }
    run(commands["ringkv generate"])
    laps: dict[str, list[CommandTimes]] = {name: [] for name in commands}
    for _ in range(args.runs):
        for name, command in commands.items():
            laps[name].append(run(command))
    figures = [{"command": name, **_medians(runs)} for name, runs in laps.items()]
    rows = [(figure["command"], *(f"{figure[key]:.2f} s" for key in SHOWN)) for figure in figures]
    head = ("command, warm", "first output", "best of all runs", "until it ends", "processor time")
    keep("startup", vars(args), figures, table(head, rows))


def run(command: Sequence[str], **process: Any) -> CommandTimes:
    """Time one command. process: more arguments of `Popen`. Raises CalledProcessError with its output if it fails."""
    before, started = children_seconds(), time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **process) as program:
        assert program.stdout is not None
        program.stdout.read(1)
        first = time.perf_counter() - started
        out, err = program.communicate()
    ended = time.perf_counter() - started
    if program.returncode:
        raise subprocess.CalledProcessError(program.returncode, command, out, err)
    return CommandTimes(first, ended, children_seconds() - before)


def _medians(runs: Sequence[CommandTimes]) -> dict[str, Any]:
    columns = zip(CommandTimes._fields, map(median, zip(*runs, strict=True)), strict=True)
    return dict(columns) | {"best_s": min(run.first_s for run in runs)}


if __name__ == "__main__":
    main()
