"""Measure two processes that divide a model beside one with as many threads, and what their exchange costs.

    python -m bench.ranks [--models smollm2,qwen2.5-coder-1.5b] [--slots 1,8] [--turns 6] [--parts decode,load]

The parts are decode, waits, load, answers and exchange. Times are medians. Run it on an idle machine with two cores or
more.
"""

import argparse
from collections.abc import Callable, Sequence

from bench.ranks.answers import DTYPES, answers, answers_table
from bench.ranks.child import THREADS
from bench.ranks.decode import BUDGET, PROMPT, STEPS, decode, decode_table
from bench.ranks.exchange import exchange, exchange_table
from bench.ranks.load import load, load_table
from bench.ranks.waits import waits, waits_table
from bench.results import Figure, keep

COUNTS = (2, 4, 16)  # ranks that exchange


def main() -> None:
    args = _arguments()
    models, slots = args.models.split(","), [int(one) for one in args.slots.split(",")]
    parts: dict[str, tuple[Callable[[], list[Figure]], Callable[[Sequence[Figure]], str]]] = {
        "decode": (lambda: [decode(model, count, args.turns) for model in models for count in slots], decode_table),
        "waits": (lambda: [waits(model, count) for model in models for count in slots], waits_table),
        "load": (lambda: [load(model, rank) for model in models for rank in range(THREADS)], load_table),
        "answers": (lambda: [answers(model, dtype) for model in models for dtype in DTYPES], answers_table),
        "exchange": (lambda: [exchange(count) for count in COUNTS], exchange_table),
    }
    found = {name: parts[name][0]() for name in args.parts.split(",")}
    shown = "\n\n".join(parts[name][1](figures) for name, figures in found.items())
    workload = {"prompt_tokens": PROMPT, "budget": BUDGET, "steps": STEPS, "threads": THREADS}
    keep("ranks", workload, [one for figures in found.values() for one in figures], shown)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="smollm2,qwen2.5-coder-1.5b")
    parser.add_argument("--slots", default="1,8")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--parts", default="decode,waits,load,answers,exchange")
    return parser.parse_args()


if __name__ == "__main__":
    main()
