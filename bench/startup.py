"""startup: the time from `ringkv generate` on the command line to its first token, beside only importing torch.

    python -m bench.startup                         SmolLM2, 10 runs of each, alternating

A warm-up run, not counted, pulls the model and compiles its graphs if that has not been done.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.results import keep, table

QUESTION = "What is the capital of France?"
FLOOR = (sys.executable, "-c", "import torch; print('imported', flush=True)")


class CommandTimes(NamedTuple):
    """Seconds of one process: until its first output byte, until it ended, and of CPU time."""

    first_s: float
    whole_s: float
    cpu_s: float


def main() -> None:
    args = _arguments()
    commands = {
        "import torch": FLOOR,
        "ringkv generate": (str(_ringkv()), "generate", "--model", args.model, "--max-tokens", "1", QUESTION),
    }
    run(commands["ringkv generate"])
    laps: dict[str, list[CommandTimes]] = {name: [] for name in commands}
    for _ in range(args.runs):
        for name, command in commands.items():
            laps[name].append(run(command))
    figures = [{"command": name, **_medians(runs)} for name, runs in laps.items()]
    rows = [
        (str(f["command"]), *(f"{f[key]:.2f} s" for key in ("first_s", "best_s", "whole_s", "cpu_s"))) for f in figures
    ]
    head = ("command, warm", "first output", "best of all runs", "until it ends", "processor time")
    keep("startup", vars(args), figures, table(head, rows))


def run(command: Sequence[str]) -> CommandTimes:
    """Time one command. Raises CalledProcessError with its output if it fails."""
    before, started = _children_s(), time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.read(1)
        first = time.perf_counter() - started
        out, err = program.communicate()
    whole = time.perf_counter() - started
    if program.returncode:
        raise subprocess.CalledProcessError(program.returncode, command, out, err)
    return CommandTimes(first, whole, _children_s() - before)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _medians(runs: Sequence[CommandTimes]) -> dict[str, float]:
    named = {field: median(getattr(one, field) for one in runs) for field in CommandTimes._fields}
    return named | {"best_s": min(one.first_s for one in runs)}


def _ringkv() -> Path:
    """Return the command installed beside this interpreter."""
    return Path(sys.executable).with_name("ringkv")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--runs", type=int, default=10)
    return parser.parse_args()


if __name__ == "__main__":
    main()
