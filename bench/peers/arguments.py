"""arguments: the command line of `python -m bench.peers`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench.arguments import command_line, names_of, numbers
from bench.peers.engines import ENGINES
from bench.results import TABLE
from ringkv.plan.complete import default_threads
from ringkv.plan.units import parse_bytes

ABOUT = """ringkv beside llama.cpp, vLLM and OpenVINO GenAI, in one run.

    python -m bench.peers                               SmolLM2, all engines, 1 to 16 requests at 512, 4k and 8k
    python -m bench.peers --model qwen2.5-coder-1.5b --prompts 512,4096,8192,16384 --batch-prompts 16384
    python -m bench.peers --equal-bytes 1.5GB           each engine's largest batch in so many bytes of cache
    python -m bench.peers --resident                    peak memory and start time, 8 requests at 8k

The first run installs each peer in its own environment under ringkv's cache folder and converts the weights for it.
All engines get the same weights, prompts and numbers of tokens. They take turns; the others are stopped meanwhile.
Every measurement is written to a journal at once. After Ctrl-C the table shows the measurements so far and nothing is
appended; --resume continues at the same commit.
The figures are appended to bench/results/measurements.jsonl; `python -m bench.report` writes them into the docs."""


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(ABOUT, "python -m bench.peers")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--equal-bytes", type=parse_bytes, metavar="BYTES", help="largest batch in equal cache bytes")
    what.add_argument("--resident", action="store_true", help="peak memory and start time of each engine alone")
    what.add_argument("--install-only", action="store_true", help="install peers and convert weights, then end")
    add = parser.add_argument
    add("--model", default="smollm2", help="a model that `ringkv models` lists (smollm2)")
    add("--engines", type=names_of(ENGINES, "engine"), default=tuple(ENGINES), help=f"a subset of {','.join(ENGINES)}")
    add("--prompts", type=numbers, help="lengths in tokens (512,4096,8192; the other measurements: 8192)")
    add("--batch-prompts", type=numbers, help="lengths for several concurrent requests (all of --prompts)")
    add("--requests", type=numbers, help="numbers of concurrent requests (1,4,8,16; --resident: 8)")
    add("--rounds", type=int, default=3, help="measurements of lone prompts and starts (3; --resident: 2 or more)")
    add("--batch-rounds", type=int, default=1, help="measurements of several requests; long prompts take minutes (1)")
    add("--turns", type=int, default=4, help="turns of each engine in a round (4)")
    add("--steps", type=int, default=8, help="decode steps in a turn (8)")
    add("--weights", type=int, choices=(16, 8, 4), default=16, help="bits; vllm stays at 16 (16)")
    add("--gguf", choices=("f16", "bf16"), default="f16", help="llama.cpp's 16-bit dtype (f16)")
    add("--threads", type=int, default=default_threads(), help="threads per engine (the CPUs of this process)")
    add(
        "--memory",
        type=parse_bytes,
        metavar="BYTES",
        help="limit for engines in memory together, by a conservative estimate (90%% of free memory)",
    )
    add("--timeout", type=float, default=3600, help="seconds for one reply of an engine (3600)")
    add("--to", type=Path, default=TABLE, metavar="FILE", help="table to append to (bench/results/measurements.jsonl)")
    add("--resume", action="store_true", help="continue from the journal of the same run")
    args = parser.parse_args(argv)
    if args.resident and args.rounds < 2:
        parser.error("--resident needs --rounds 2 or more: the first start may compile what the others load")
    return _completed(args)


def _completed(args: argparse.Namespace) -> argparse.Namespace:
    """Fill in the defaults that depend on the measurement."""
    alone = bool(args.equal_bytes or args.resident)
    args.prompts = args.prompts or ((8192,) if alone else (512, 4096, 8192))
    args.batch_prompts = args.batch_prompts or args.prompts
    args.requests = args.requests or ((8,) if args.resident else (1, 4, 8, 16))
    return args
