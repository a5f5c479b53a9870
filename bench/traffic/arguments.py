"""arguments: the command line of `python -m bench.traffic`."""

import argparse
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from bench.arguments import command_line, names_of, numbers
from bench.results import TABLE
from bench.traffic.engines import ENGINES
from bench.traffic.traces import FILES
from ringkv.plan.complete import default_threads
from ringkv.plan.units import parse_bytes

ABOUT = """ringkv's server beside vLLM's, llama.cpp's and OpenVINO's, under the same load, in the same bytes of cache.

    python -m bench.traffic                                      short prompts, 16 and 64 clients, all engines
    python -m bench.traffic --workload azure-conv --rates 0.5,1,2
    python -m bench.traffic --run NAME ...                       continue or extend a run

Workloads are short (prompts of 40 to 400 tokens, answers of 32 to 256), and the traces azure-conv, azure-code,
mooncake and servegen, whose arrivals are scaled to each rate. Temperature is 0.7 and top-p 0.95; every answer has the
length that its request names. The clients are vLLM's own serving benchmark, the same process for all engines. Each
server starts once; engines take turns, and the others are stopped meanwhile. An engine leaves the ladder of rates once
less than --stop of its requests meet the objective: first token in 2 s, then 150 ms per token.

The first run installs each peer in its own environment under ringkv's cache folder and converts the weights for it.
Every turn is written to a journal at once, so after Ctrl-C the same command with --run continues. Commands with the
same --run make one run. The figures are appended to bench/results/measurements.jsonl; `python -m bench.report` writes
them into the docs."""

DEFAULT = ("ringkv", "vllm", "llama.cpp", "openvino")
WORKLOADS = ("short", *FILES)
CACHE = "1.5GB"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(ABOUT, "python -m bench.traffic")
    add = parser.add_argument
    add("--model", default="smollm2", help="a model that `ringkv models` lists (smollm2)")
    add(
        "--engines",
        type=names_of(ENGINES, "engine"),
        default=DEFAULT,
        help=f"a subset of {','.join(ENGINES)} ({','.join(DEFAULT)})",
    )
    add("--workload", choices=WORKLOADS, default="short", help="(short)")
    add("--clients", type=numbers, help="clients that wait for their answers; short only (16,64)")
    add("--each", type=int, default=3, help="requests of each client, on average (3)")
    add("--rates", type=_rates, help="requests per second of a trace, rising")
    add("--seconds", type=float, default=60, help="time in which requests arrive at each rate (60)")
    add("--turns", type=int, default=2, help="turns of each engine under each load (2)")
    add("--stop", type=float, default=0.5, help="share of good requests that leads to the next rate (0.5)")
    add("--cache", type=parse_bytes, default=parse_bytes(CACHE), metavar="BYTES", help=f"keys and values ({CACHE})")
    add("--store", type=parse_bytes, default=0, metavar="BYTES", help="ringkv's prefix store, part of --cache (0)")
    add("--at-once", type=int, help="most requests that a server runs at once (the clients; with --rates 32)")
    add("--prompt", type=int, default=4096, help="longest prompt of a trace; longer requests are left out (4096)")
    add("--output", type=int, default=1024, help="longest answer of a trace; longer requests are left out (1024)")
    add("--shrink", type=int, default=1, help="a trace's lengths are divided by this (1)")
    add("--threads", type=int, default=default_threads(), help="threads per engine (the CPUs of this process)")
    add("--gguf", choices=("f16", "bf16"), default="bf16", help="llama.cpp's 16-bit dtype (bf16)")
    add("--extra", action="append", default=[], metavar="ENGINE=ARGUMENTS", help="more arguments for a server")
    add("--run", type=_run, help="a name that begins with the date; commands with the same one make one run (the time)")
    add("--to", type=Path, default=TABLE, metavar="FILE", help="table to append to (bench/results/measurements.jsonl)")
    args = parser.parse_args(argv)
    if (args.workload == "short") == bool(args.rates) or (args.rates and args.clients):
        parser.error("a trace needs --rates, and short prompts take none")
    if args.workload == "short":
        args.clients = args.clients or (16, 64)
    args.at_once = args.at_once or max(args.clients or (32,))
    args.extra = dict(one.split("=", 1) for one in args.extra)
    return args


def _rates(text: str) -> tuple[float, ...]:
    rates = tuple(float(number) for number in text.split(","))
    if list(rates) != sorted(rates) or min(rates) <= 0:
        raise argparse.ArgumentTypeError("rates must be above 0 and rise")
    return rates


def _run(text: str) -> str:
    """Return the name. Raises unless runs in the order of their names are in the order of time."""
    try:
        date.fromisoformat(text[:10])
    except ValueError:
        raise argparse.ArgumentTypeError(f"a run begins with its date, such as {date.today()}-a") from None
    return text
