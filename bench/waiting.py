"""Decode steps beside an idle and a busy neighbour, by how long OpenMP spins: why `base.waiting` chooses as it does.

python -m bench.waiting                         SmolLM2, 8 slots of 1,792 entries
"""

import argparse
import json
import os
import subprocess
import sys
from statistics import median

SPINS = ("100", "500", "2000", "5000", "10000", "300000")
NEIGHBOUR = "import os\nmine = os.getppid()\nwhile os.getppid() == mine: pass"  # while its parent lives


def main() -> None:
    asked = _arguments()
    if asked.measure:
        print(json.dumps(_measure(asked.model, asked.slots, asked.budget)))
        return
    from bench.results import keep, table

    figures = []
    for spins in SPINS:
        idle, busy = _steps(spins), _beside_a_busy_process(spins)
        figures.append({"spins": spins, "idle_s": idle, "busy_s": busy})
    rows = [(f["spins"], f"{f['idle_s'] * 1e3:.0f} ms", f"{f['busy_s'] * 1e3:.0f} ms") for f in figures]
    workload = {"model": asked.model, "slots": asked.slots, "budget": asked.budget}
    keep("waiting", workload, figures, table(("GOMP_SPINCOUNT", "step, idle machine", "one core taken"), rows))


def _beside_a_busy_process(spins: str) -> float:
    with subprocess.Popen([sys.executable, "-c", NEIGHBOUR]) as neighbour:
        try:
            return _steps(spins)
        finally:
            neighbour.kill()


def _steps(spins: str) -> float:
    """A fresh process: the variable is read once, when OpenMP is loaded. 300,000 is what OpenMP does by itself."""
    environment = os.environ | {"GOMP_SPINCOUNT": spins}
    command = [sys.executable, "-m", "bench.waiting", "--measure", *sys.argv[1:]]
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return float(json.loads(said.splitlines()[-1]))


def _measure(model: str, slots: int, budget: int) -> float:
    """Seconds of a decode step with every slot full, the median of 20."""
    from ringkv.engine.build import build
    from ringkv.models.config import load_config
    from ringkv.plan.memory import available_bytes
    from ringkv.plan.options import Options
    from ringkv.plan.resolve import resolve
    from ringkv.residency.locate import locate
    from ringkv.scheduler.round import run_round

    folder = locate(model)
    options = Options(slots=slots, kv_budget=budget, prompt_tokens=2048)
    engine = build(resolve(folder, load_config(folder), options, available_bytes()))
    return median(run_round(engine, 2048, 21).steps)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--budget", type=int, default=1792)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
