"""Fuzzing: random and mutated inputs, each in a child process with a memory and a time limit.

    python -m bench.fuzz                              list the targets
    python -m bench.fuzz grammars --minutes 10 --keep  append the counts to the table of results
    python -m bench.fuzz templates --seed 7 --case 41  repeat one case and show its input

An input may be refused with an error of ringkv. Anything else is a finding: a crash, an unexpected exception, a hang,
or memory over the limit. The exit status is 1 if there are findings.
"""

import argparse
import sys
import time
from collections.abc import Mapping
from typing import Any

from bench.fuzz.channel import CHANNEL
from bench.fuzz.configs import CONFIGS
from bench.fuzz.gguf import GGUF_FILES
from bench.fuzz.grammars import GRAMMARS
from bench.fuzz.http import HTTP
from bench.fuzz.safetensors import SAFETENSORS
from bench.fuzz.target import Outcome, Target, run_case
from bench.fuzz.templates import TEMPLATES
from bench.fuzz.tokenizers import TOKENIZERS

TARGETS: Mapping[str, Target] = {
    "channel": CHANNEL,
    "config": CONFIGS,
    "gguf": GGUF_FILES,
    "grammars": GRAMMARS,
    "http": HTTP,
    "safetensors": SAFETENSORS,
    "templates": TEMPLATES,
    "tokenizers": TOKENIZERS,
}

SHOWN = 2000  # characters of a finding's input


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", nargs="?", choices=TARGETS, help="what to fuzz; without it the targets are listed")
    parser.add_argument("--minutes", type=float, default=10.0, help="default 10")
    parser.add_argument("--seed", type=int, default=0, help="other seeds give other inputs; default 0")
    parser.add_argument("--case", type=int, help="run only the case of this number")
    parser.add_argument("--keep", action="store_true", help="append the counts to the table of results")
    args = parser.parse_args()
    if args.target is None:
        print("\n".join(f"{name:12} {target.about}" for name, target in TARGETS.items()))
        return
    target = TARGETS[args.target]
    target.prepare()
    if args.case is not None:
        print(repr(target.case(args.seed, args.case))[:SHOWN])
        print(run_case(target, args.seed, args.case).sentence)
        return
    figure = _fuzz(args)
    if args.keep:
        from bench.results import keep, table

        counts = [f"{figure[name]:,}" for name in ("cases", "findings")]
        keep("fuzz", {"target": args.target, "seed": args.seed}, [figure], table(("cases", "findings"), [counts]))
    sys.exit(1 if figure["findings"] else 0)


def _fuzz(args: argparse.Namespace) -> dict[str, Any]:
    """Try cases for the time that was asked for; return their counts, and what the worst ones took."""
    target, findings, slowest, largest = TARGETS[args.target], list[Outcome](), 0.0, 0
    began, cases = time.monotonic(), 0
    while time.monotonic() - began < args.minutes * 60:
        outcome = run_case(target, args.seed, cases)
        slowest, largest = max(slowest, outcome.seconds), max(largest, outcome.grown_mb)
        if outcome.is_finding:
            findings.append(outcome)
            print(f"case {cases}: {outcome.sentence}\n    {target.case(args.seed, cases)!r:.300}", flush=True)
        cases += 1
    minutes = (time.monotonic() - began) / 60
    print(
        f"{args.target}: {cases:,} cases of seed {args.seed} in {minutes:.1f} minutes, {len(findings)} findings; "
        f"slowest {slowest:.1f} s (limit {target.seconds:g} s), largest {largest:,} MB (limit {target.memory_mb:,} MB)"
    )
    return {
        "cases": cases,
        "findings": len(findings),
        "fuzzed_s": 60 * minutes,
        "slowest_s": slowest,
        "peak_bytes": largest << 20,
    }


if __name__ == "__main__":
    main()
