"""Benchmark Llama-3.1-8B's shapes with random weights on a device: decode attention, whole steps, prefill.

    python -m bench.device                          under eight minutes; needs torch and Triton, no network
    python -m bench.device --small                  tiny shapes on the CPU in seconds, to check the script

The full cache, each budget and each format get as many slots as `ringkv plan` fits beside weights, staging for one 128k
prompt and a reserve. Every part runs in its own process with a time limit. Figures are written to device.jsonl at once,
so a part that fails loses only its own figures. At the end all figures are appended to the table of results.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from bench.arguments import command_line
from bench.device.parts import PARTS
from bench.device.scale import SCALES, Scale
from bench.journal import append_line, read_lines
from bench.report.device import tables_of
from bench.results import RESULTS, TABLE, keep

PART_SECONDS = 150


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--small", action="store_true", help="tiny shapes on the CPU")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of device.jsonl and of the table")
    parser.add_argument("--seconds", type=float, default=460, help="time limit for all parts together")
    parser.add_argument(
        "--only",
        default="",
        metavar="PARTS",
        help="run only these, of probe, decode, decode:8192, blocks, prefill; add them to the journal",
    )
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    scale = SCALES["small" if args.small else "real"]
    journal = args.out / "device.jsonl"
    if args.part:
        _run_here(args.part, scale, journal)
        return 0
    if scale.torch_device.type == "cuda" and not torch.cuda.is_available():
        print("torch finds no CUDA device; --small checks the script on the CPU", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.only:
        journal.unlink(missing_ok=True)
    deadline = time.monotonic() + args.seconds
    for group in _plan(scale):
        if group[0].startswith(tuple(args.only.split(","))):
            _first_that_works(group, args, scale, journal, deadline)
    figures = read_lines(journal)
    failed = [figure for figure in figures if figure["kind"] == "failed"]
    workload = {"model": scale.model, "prompt_tokens": scale.prompt, "dtype": scale.dtype, "reserve": scale.reserve}
    keep("device", workload, figures, tables_of(figures), args.out / TABLE.name, _machine(scale.torch_device))
    print("\n".join(f"Failed: {figure['part']}: {figure['why']}" for figure in failed) or "all parts done")
    return 1 if failed else 0


def _plan(scale: Scale) -> Iterator[list[str]]:
    """Yield the parts by priority, each with its fallbacks."""
    yield ["probe"]
    for which in ("full", *scale.budgets):
        yield [f"decode:{which}/{backend}/plain" for backend in scale.backends]
    least = min(scale.budgets)
    for which, kv_format in (*product((least,), scale.formats), ("full", scale.formats[-1])):
        yield [f"decode:{which}/{backend}/{kv_format}" for backend in scale.backends]
    yield ["blocks"]
    yield [f"prefill:{backend}" for backend in scale.backends]
    yield [f"decode:{least}/{scale.backends[-1]}/plain"]  # the gain from fused graphs


def _first_that_works(group: list[str], args: argparse.Namespace, scale: Scale, journal: Path, deadline: float) -> None:
    for name in group:
        left = min(PART_SECONDS, deadline - time.monotonic())
        if left < 5 or (fault := _run(name, args, scale, journal, left)) is None:
            return
        append_line(journal, {"kind": "failed", "part": name, "why": fault})


def _run(name: str, args: argparse.Namespace, scale: Scale, journal: Path, limit: float) -> str | None:
    """Run a part and return the reason of a failure, or None. Tiny parts run in this process, which is faster."""
    print(f"{name} (at most {limit:.0f} s)", flush=True)
    if args.small:
        _run_here(name, scale, journal)
        return None
    command = [sys.executable, "-m", "bench.device", "--part", name, "--out", str(args.out)]
    try:
        done = subprocess.run(command, timeout=limit, stderr=subprocess.PIPE, text=True, check=False)
    except subprocess.TimeoutExpired:
        return f"stopped after {limit:.0f} s"
    return "\n".join(done.stderr.splitlines()[-8:]) if done.returncode else None


def _run_here(name: str, scale: Scale, journal: Path) -> None:
    """Run a part with the free memory that the first part measured, so that all parts plan alike."""

    def write(kind: str, **figure: Any) -> None:
        append_line(journal, {"kind": kind, **figure})
        print(f"  {kind} {figure}", flush=True)

    memory = [figure["free"] for figure in read_lines(journal) if figure["kind"] == "memory"]
    part, _, rest = name.partition(":")
    PARTS[part](replace(scale, memory=memory[0]) if memory else scale, write, rest)


def _machine(device: torch.device) -> str | None:
    """Return the device's name; None for this CPU."""
    if device.type != "cuda":
        return None
    facts = torch.cuda.get_device_properties(device)
    return f"{facts.name}, {facts.multi_processor_count} multiprocessors, {facts.total_memory / 1e9:.1f} GB"


if __name__ == "__main__":
    sys.exit(main())
