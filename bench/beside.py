"""beside: the speed of this tree and of an earlier commit, in two running processes that alternate.

    python -m bench.beside 099e118 [--models smollm2,qwen2.5-coder-1.5b] [--slots 1,8]
    python -m bench.beside HEAD --options kv_policy=arkvale,kv_page=16 --processes 3
    python -m bench.beside HEAD --options kv_format=int8,graphs=off --attention

The earlier commit is checked out into a temporary folder; the same interpreter runs both. A figure is the median over
all turns of all pairs of processes, a ratio is that of the medians. Where memory lies differs from process to process,
so several pairs tell a change of the code from luck. Run it on an idle machine.
"""

import json
import os
import subprocess
import sys
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.arguments import command_line, numbers
from bench.data import REPOSITORY
from bench.results import keep, table

PROMPT, STEPS, BUDGET = 2048, 48, 512
BUILT = """
import json, sys
from ringkv.engine.build import build
from ringkv.models.config import load_config
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.residency.locate import locate

folder, options = locate(sys.argv[1]), Options(**json.loads(sys.argv[2]))
engine = build(resolve(folder, load_config(folder), options, available_bytes()))
"""
WORKER = f"""{BUILT}
from collections import defaultdict
from contextlib import nullcontext
from statistics import median
from time import perf_counter
from torch.utils._python_dispatch import TorchDispatchMode
try:
    from ringkv.bench.round import run_round
except ImportError:  # a commit from before it moved
    from ringkv.scheduler.round import run_round

seconds, times_attention = defaultdict(list), sys.argv[4] == "attention"


class Clock(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        start = perf_counter()
        result = function(*args, **(kwargs or {{}}))
        for name in ("prefill_attend", "decode_attend"):
            if name in str(function):
                seconds[name].append(perf_counter() - start)
        return result


def attention(name, steps):
    # Seconds of a step, by the median call.
    return median(seconds[name]) * len(seconds[name]) / steps


print("ready", flush=True)
for line in sys.stdin:
    seconds.clear()
    with Clock() if times_attention else nullcontext():
        done = run_round(engine, int(sys.argv[3]) - 8, {STEPS} + 1)
    of_attention = (attention("prefill_attend", 1), attention("decode_attend", {STEPS})) if times_attention else ()
    print(json.dumps(of_attention or [done.prefill, *done.steps]), flush=True)
"""


class CommitProcess:
    """One commit's engine in its own process."""

    def __init__(self, sources: Path, model: str, options: dict[str, Any], times: str = "rounds") -> None:
        command = [sys.executable, "-c", WORKER, model, json.dumps(options), str(options["prompt_tokens"]), times]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, **of_tree(sources))
        assert self._line() == "ready", f"the engine of {sources} did not start"

    def measure(self) -> tuple[float, list[float]]:
        """Return the seconds of one prompt's prefill, and of each decode step with every slot in use."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        prefill, *steps = json.loads(self._line())
        return prefill, steps

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("commit")
    parser.add_argument("--models", default="smollm2,qwen2.5-coder-1.5b")
    parser.add_argument("--slots", type=numbers, default=(1, 8))
    parser.add_argument("--turns", type=int, default=6, help="rounds of each process")
    parser.add_argument("--processes", type=int, default=1, help="pairs of processes")
    parser.add_argument("--attention", action="store_true", help="time the operators of attention alone (graphs=off)")
    parser.add_argument("--prompt", type=int, default=PROMPT, help="tokens")
    parser.add_argument("--options", type=options, default=[], metavar="NAME=VALUE,...", help="fields of `Options`")
    args = parser.parse_args()
    figures: list[dict[str, Any]] = []
    base = {"prompt_tokens": args.prompt, "kv_budget": BUDGET} | dict(args.options)
    with checked_out(args.commit) as before:
        for model in args.models.split(","):
            for slots in args.slots:
                figure = compare((before, REPOSITORY), model, base | {"slots": slots}, args)
                figures.append({"model": model, "slots": slots, **figure})
                print(_table(figures), flush=True)
    workload = {"before": args.commit, "prompt_tokens": args.prompt, "budget": BUDGET, "steps": STEPS}
    workload |= {"turns": args.turns, "processes": args.processes} | ({"time": "attention"} if args.attention else {})
    keep("beside", workload | dict(args.options), figures, _table(figures))


def of_tree(sources: Path) -> dict[str, Any]:
    """Return the arguments of `Popen` for an interpreter that imports ringkv from a checked-out tree."""
    return {"cwd": sources, "env": os.environ | {"PYTHONPATH": str(sources / "src")}}


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check a commit's files out into a temporary folder."""
    with TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit], cwd=REPOSITORY, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


def compare(trees: tuple[Path, Path], model: str, options: dict[str, Any], args: Namespace) -> dict[str, float]:
    """Return the medians of both trees, the earlier one first, and their ratios."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for _ in range(args.processes):
        with ExitStack() as stack:
            workers = {
                name: CommitProcess(tree, model, options, "attention" if args.attention else "rounds")
                for name, tree in zip(("before", "now"), trees, strict=True)
            }
            for worker in workers.values():
                stack.callback(worker.close)
                worker.measure()  # warms up
            for turn in range(args.turns):
                for name in workers if turn % 2 else reversed(workers):
                    prefill, steps = workers[name].measure()
                    seconds[f"prefill_{name}_s"].append(prefill)
                    seconds[f"step_{name}_s"] += steps
    figure = {name: median(seconds[name]) for name in sorted(seconds)}
    ratios = {f"{what}_ratio": figure[f"{what}_now_s"] / figure[f"{what}_before_s"] for what in ("prefill", "step")}
    return figure | ratios


def options(text: str) -> list[tuple[str, Any]]:
    """Return the fields of `Options` and their values that NAME=VALUE,... gives. Numbers are read as such."""

    def read(value: str) -> Any:
        try:
            return json.loads(value)
        except ValueError:
            return value

    return [(name, read(value)) for name, _, value in (part.partition("=") for part in text.split(","))]


def _table(figures: Sequence[Mapping[str, Any]]) -> str:
    head = ("model", "slots", "prefill before", "now", "now/before", "step before", "now", "now/before")
    rows = [
        (
            figure["model"],
            f"{figure['slots']}",
            f"{figure['prefill_before_s']:.3f} s",
            f"{figure['prefill_now_s']:.3f} s",
            f"{figure['prefill_ratio']:.3f}",
            f"{figure['step_before_s'] * 1e3:.2f} ms",
            f"{figure['step_now_s'] * 1e3:.2f} ms",
            f"{figure['step_ratio']:.3f}",
        )
        for figure in figures
    ]
    return table(head, rows)


if __name__ == "__main__":
    main()
