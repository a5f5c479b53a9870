"""roles: prefill apart from decode, beside one engine that does both. SmolLM2, a core for each worker.

    python -m bench.roles                             all parts: eight minutes on two idle cores
    python -m bench.roles --part steps --times 5
    python -m bench.roles --part tokens,sizes --graphs off

tokens: 200 mixed requests have the tokens of one engine. steps: the time between two tokens of seven running requests,
while a prompt of 8,000 tokens is read and while none is. sizes: bytes of a transfer, and those of the formula. kills:
kill -9 of either side, ten times, under load. It fails if one of these is not as it must be.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from bench.results import Figure, keep, table
from bench.roles import kills, sizes, steps, tokens
from bench.roles.surroundings import BUDGET, SLOTS, Setting, set_secret

PARTS = ("tokens", "steps", "sizes", "kills")


def main() -> None:
    args, figures = _arguments(), list[Figure]()
    setting = Setting(args.model, args.graphs, args.cores)
    set_secret()
    parts = args.part.split(",")
    if "tokens" in parts:
        figures.append(asyncio.run(tokens.run(setting, args.requests)))
    if "steps" in parts:
        figures += asyncio.run(steps.run(setting, args.times))
    if "sizes" in parts:
        figures.append(sizes.run(setting))
    if "kills" in parts:
        figures += asyncio.run(kills.run(replace(setting, graphs="off"), args.kills))
    workload = {"model": args.model, "slots": SLOTS, "budget": BUDGET, "graphs": args.graphs}
    keep("roles", workload, figures, _shown(figures))
    if failures := [*wrong(figures), *steps.wrong(figures)]:
        sys.exit("\n".join(failures))


def wrong(figures: Sequence[Figure]) -> list[str]:
    """Return a sentence for each count that must be 0."""
    zero = ("lost_requests", "hung_requests", "wrong_transfers", "more_files")
    return [
        f"{one['part']} {one.get('engine', '')}: {name} is {one[name]}"
        for one in figures
        for name in zero
        if one.get(name, 0) > 0
    ]


def _shown(figures: Sequence[Figure]) -> str:
    return "\n\n".join(table((one["part"], one.get("engine", "")), list(map(_row, _values(one)))) for one in figures)


def _values(one: Figure) -> list[tuple[str, object]]:
    return [(name, value) for name, value in one.items() if name not in ("part", "engine")]


def _row(field: tuple[str, object]) -> tuple[str, str]:
    name, value = field
    return name, f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--part", default=",".join(PARTS))
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--times", type=int, default=3, help="long prompts that are read")
    parser.add_argument("--kills", type=int, default=10, help="of each side")
    parser.add_argument("--graphs", default="auto")
    parser.add_argument("--cores", type=_cores, default=tuple(sorted(os.sched_getaffinity(0)))[:2])
    return parser.parse_args()


def _cores(text: str) -> tuple[int, int]:
    first, second = map(int, text.split(","))
    return first, second


if __name__ == "__main__":
    main()
