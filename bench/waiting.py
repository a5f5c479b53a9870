"""waiting: decode steps on an idle machine and beside a busy process, by OpenMP's spin count.

    python -m bench.waiting                         SmolLM2, 8 slots of 1,792 entries

`ringkv.machine.waiting` takes its spin count from these figures.
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
    args = _arguments()
    if args.measure:
        print(json.dumps(_measure(args.model, args.slots, args.budget)))
        return
    from bench.results import keep, table

    figures = []
    for spins in SPINS:
        idle, busy = _steps(spins), _beside_a_busy_process(spins)
        figures.append({"spins": spins, "idle_s": idle, "busy_s": busy})
    rows = [(f["spins"], f"{f['idle_s'] * 1e3:.0f} ms", f"{f['busy_s'] * 1e3:.0f} ms") for f in figures]
    workload = {"model": args.model, "slots": args.slots, "budget": args.budget}
    keep("waiting", workload, figures, table(("GOMP_SPINCOUNT", "step, idle machine", "one core taken"), rows))


def _beside_a_busy_process(spins: str) -> float:
    with subprocess.Popen([sys.executable, "-c", NEIGHBOUR]) as neighbour:
        try:
            return _steps(spins)
        finally:
            neighbour.kill()


def _steps(spins: str) -> float:
    """Measure a step in a fresh process, as OpenMP reads the variable once on loading. 300,000 is OpenMP's default."""
    environment = os.environ | {"GOMP_SPINCOUNT": spins}
    command = [sys.executable, "-m", "bench.waiting", "--measure", *sys.argv[1:]]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return float(json.loads(output.splitlines()[-1]))


def _measure(model: str, slots: int, budget: int) -> float:
    """Return the seconds of a decode step with every slot full, the median of 20."""
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
