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
from pathlib import Path

import torch

from bench.device.journal import DeviceJournal
from bench.device.parts import PARTS, caches
from bench.device.scale import SCALES, Scale
from bench.device.tables import tables
from bench.results import RESULTS, TABLE, keep

PART_SECONDS = 150


def main() -> int:
    args = _arguments()
    scale = SCALES["small" if args.small else "real"]
    journal = DeviceJournal(args.out / "device.jsonl")
    if args.part:
        _run_here(args.part, _with_known_memory(scale, journal), journal)
        return 0
    if scale.torch_device.type == "cuda" and not torch.cuda.is_available():
        print("torch finds no CUDA device; --small checks the script on the CPU", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.only:
        journal.path.unlink(missing_ok=True)
    deadline = time.monotonic() + args.seconds
    for group in _plan(scale):
        if group[0].startswith(tuple(args.only.split(","))):
            _first_that_works(group, args, scale, journal, deadline)
    _write(scale, journal, args.out)
    failed = journal.of("failed")
    print(f"{len(failed)} parts failed" if failed else "all parts done")
    return 1 if failed else 0


def _plan(scale: Scale) -> Iterator[list[str]]:
    """Yield the parts by priority, each with its fallbacks."""
    yield ["probe"]
    for policy, budget in caches(scale):
        which = "full" if policy == "full" else str(budget)
        yield [f"decode:{which}/{backend}/plain" for backend in scale.backends]
    least = min(scale.budgets)
    for which, kv_format in (*((f"{least}", one) for one in scale.formats), ("full", scale.formats[-1])):
        yield [f"decode:{which}/{backend}/{kv_format}" for backend in scale.backends]
    yield ["kernels"]
    yield ["blocks"]
    yield [f"prefill:{backend}" for backend in scale.backends]
    yield [f"decode:{least}/{scale.backends[-1]}/plain"]  # the gain from fused graphs


def _first_that_works(
    group: list[str], args: argparse.Namespace, scale: Scale, journal: DeviceJournal, deadline: float
) -> None:
    for name in group:
        left = min(PART_SECONDS, deadline - time.monotonic())
        if left < 5 or (fault := _run(name, args, scale, journal, left)) is None:
            return
        journal.add("failed", part=name, why=fault)


def _run(name: str, args: argparse.Namespace, scale: Scale, journal: DeviceJournal, limit: float) -> str | None:
    """Run a part and return the reason of a failure, or None. Tiny parts run in this process, which is faster."""
    print(f"{name} (at most {limit:.0f} s)", flush=True)
    if args.small:
        _run_here(name, _with_known_memory(scale, journal), journal)
        return None
    command = [sys.executable, "-m", "bench.device", "--part", name, "--out", str(args.out)]
    try:
        done = subprocess.run(command, timeout=limit, stderr=subprocess.PIPE, text=True, check=False)
    except subprocess.TimeoutExpired:
        return f"stopped after {limit:.0f} s"
    return "\n".join(done.stderr.splitlines()[-8:]) if done.returncode else None


def _run_here(name: str, scale: Scale, journal: DeviceJournal) -> None:
    part, _, rest = name.partition(":")
    PARTS[part](scale, journal, rest)


def _with_known_memory(scale: Scale, journal: DeviceJournal) -> Scale:
    """Return the scale with the free memory that the first part measured, so that all parts plan alike."""
    known = journal.of("memory")
    return replace(scale, memory=known[0]["free"]) if known else scale


def _write(scale: Scale, journal: DeviceJournal, out: Path) -> None:
    workload = {"model": scale.model, "prompt_tokens": scale.prompt, "dtype": scale.dtype, "reserve": scale.reserve}
    shown = tables(_with_known_memory(scale, journal), journal)
    keep("device", workload, journal.read(), shown, out / TABLE.name, _machine(scale.torch_device))


def _machine(device: torch.device) -> str | None:
    """Return the device's name; None for this CPU."""
    if device.type != "cuda":
        return None
    facts = torch.cuda.get_device_properties(device)
    return f"{facts.name}, {facts.multi_processor_count} multiprocessors, {facts.total_memory / 1e9:.1f} GB"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny shapes on the CPU")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of device.jsonl and of the table")
    parser.add_argument("--seconds", type=float, default=460, help="time limit for all parts together")
    parser.add_argument(
        "--only",
        default="",
        metavar="PARTS",
        help="run only these, of probe, decode, decode:8192, kernels, blocks, prefill; add them to the journal",
    )
    parser.add_argument("--part", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
