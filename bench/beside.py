"""beside: the speed of this commit and of an earlier one, in two running processes that alternate.

    python -m bench.beside 099e118 [--models smollm2,qwen2.5-coder-1.5b] [--slots 1,8]

The earlier commit is checked out into a temporary folder; the same interpreter runs both. A figure is the median over
all turns, a ratio is that of the medians. Run it on an idle machine.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.data import REPOSITORY
from bench.results import keep, table

PROMPT, STEPS, BUDGET = 2048, 48, 512
WORKER = f"""
import json, sys
try:
    from ringkv.scheduler.round import run_round
except ImportError:  # a commit from before it moved
    from ringkv.bench.round import run_round
from ringkv.engine.build import build
from ringkv.models.config import load_config
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.residency.locate import locate

folder = locate(sys.argv[1])
options = Options(slots=int(sys.argv[2]), prompt_tokens={PROMPT}, kv_budget={BUDGET})
engine = build(resolve(folder, load_config(folder), options, available_bytes()))
print("ready", flush=True)
for line in sys.stdin:
    done = run_round(engine, {PROMPT} - 8, {STEPS} + 1)
    print(json.dumps([done.prefill, *done.steps]), flush=True)
"""


class CommitProcess:
    """One commit's engine in its own process."""

    def __init__(self, sources: Path, model: str, slots: int) -> None:
        command = [sys.executable, "-c", WORKER, model, str(slots)]
        environment = os.environ | {"PYTHONPATH": str(sources / "src")}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=sources, env=environment
        )
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
    args = _arguments()
    figures = []
    with checked_out(args.commit) as before:
        for model in args.models.split(","):
            for slots in map(int, args.slots.split(",")):
                figures.append({"model": model, "slots": slots, **_compare(before, model, slots, args.turns)})
                print(_table(figures), flush=True)
    workload = {"before": args.commit, "prompt_tokens": PROMPT, "budget": BUDGET, "steps": STEPS, "turns": args.turns}
    keep("beside", workload, figures, _table(figures))


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check a commit's files out into a temporary folder."""
    with TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit], cwd=REPOSITORY, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


def _compare(before: Path, model: str, slots: int, turns: int) -> dict[str, float]:
    with ExitStack() as stack:
        workers = {name: CommitProcess(path, model, slots) for name, path in (("before", before), ("now", REPOSITORY))}
        for worker in workers.values():
            stack.callback(worker.close)
            worker.measure()  # warms up
        prefills: dict[str, list[float]] = {name: [] for name in workers}
        steps: dict[str, list[float]] = {name: [] for name in workers}
        for turn in range(turns):
            for name in workers if turn % 2 else reversed(workers):
                prefill, taken = workers[name].measure()
                prefills[name].append(prefill)
                steps[name] += taken
    found = {f"prefill_{name}_s": median(prefills[name]) for name in workers}
    found |= {f"step_{name}_s": median(steps[name]) for name in workers}
    return found | {
        "prefill_ratio": found["prefill_now_s"] / found["prefill_before_s"],
        "step_ratio": found["step_now_s"] / found["step_before_s"],
    }


def _table(figures: list[dict[str, float]]) -> str:
    head = ("model", "slots", "prefill before", "now", "now/before", "step before", "now", "now/before")
    rows = [
        (
            str(one["model"]),
            str(one["slots"]),
            f"{one['prefill_before_s']:.3f} s",
            f"{one['prefill_now_s']:.3f} s",
            f"{one['prefill_ratio']:.3f}",
            f"{one['step_before_s'] * 1e3:.2f} ms",
            f"{one['step_now_s'] * 1e3:.2f} ms",
            f"{one['step_ratio']:.3f}",
        )
        for one in figures
    ]
    return table(head, rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--models", default="smollm2,qwen2.5-coder-1.5b")
    parser.add_argument("--slots", default="1,8")
    parser.add_argument("--turns", type=int, default=6)
    return parser.parse_args()


if __name__ == "__main__":
    main()
