"""Fuzzing: random and mutated inputs, each in a child process with a memory and a time limit.

    python -m bench.fuzz                              list the targets
    python -m bench.fuzz grammars --minutes 10
    python -m bench.fuzz templates --seed 7 --case 41  repeat one case and show its input

An input may be refused with an error of ringkv. Anything else is a finding: a crash, an unexpected exception, a hang,
or memory over the limit. The exit status is 1 if there are findings.
"""

import argparse
import sys
import time

from bench.fuzz.children import Outcome, run_case
from bench.fuzz.targets import TARGETS

SHOWN = 2000  # characters of a finding's input


def main() -> None:
    args = _arguments()
    if args.target is None:
        print("\n".join(f"{name:12} {target.about}" for name, target in TARGETS.items()))
        return
    target = TARGETS[args.target]
    target.prepare()
    if args.case is not None:
        print(repr(target.case(args.seed, args.case))[:SHOWN])
        print(run_case(target, args.seed, args.case).sentence)
        return
    findings = _fuzz(args)
    sys.exit(1 if findings else 0)


def _fuzz(args: argparse.Namespace) -> list[Outcome]:
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
    return findings


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", nargs="?", choices=TARGETS, help="what to fuzz; without it the targets are listed")
    parser.add_argument("--minutes", type=float, default=10.0, help="default 10")
    parser.add_argument("--seed", type=int, default=0, help="other seeds give other inputs; default 0")
    parser.add_argument("--case", type=int, help="run only the case of this number")
    return parser.parse_args()


if __name__ == "__main__":
    main()
