"""ringkv beside llama.cpp, vLLM and OpenVINO GenAI, in one run.

    python -m bench.peers                               SmolLM2, all engines, 1 to 16 requests at 512, 4k and 8k
    python -m bench.peers --model qwen2.5-coder-1.5b --prompts 512,4096,8192,16384 --batch-prompts 16384
    python -m bench.peers --equal-bytes 1.5GB           each engine's largest batch in so many bytes of cache
    python -m bench.peers --resident                    peak memory and start time, 8 requests at 8k

The first run installs each peer in its own environment under ringkv's cache folder and converts the weights for it.
All engines get the same weights, prompts and numbers of tokens. They take turns; the others are stopped meanwhile.
Every measurement is written to a journal at once. After Ctrl-C the table shows the measurements so far and nothing is
appended; --resume continues at the same commit.
The figures are appended to bench/results/measurements.jsonl; `python -m bench.report` writes them into the docs.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from bench.arguments import command_line, names_of, numbers, report
from bench.data import REPOSITORY
from bench.journal import Journal, Record
from bench.peers.analyse import cell_of, cells
from bench.peers.cells import shown
from bench.peers.engines import ENGINES, Demand
from bench.peers.install import NotInstalled, peers_dir, python_of
from bench.peers.pool import Pool
from bench.peers.protocols import Bench, chosen
from bench.peers.trial import Schedule
from bench.peers.weights import weights_of
from bench.peers.worker import Worker
from bench.peers.workload import fitting, prompts
from bench.results import TABLE, commit, fields_of, keep
from ringkv.models.config import load_config
from ringkv.plan.complete import default_threads
from ringkv.plan.footprint import token_bytes
from ringkv.plan.memory import available_bytes
from ringkv.plan.shapes import Shape
from ringkv.plan.units import parse_bytes
from ringkv.residency.locate import locate
from ringkv.text.tokenizer import Tokenizer

MEMORY_SHARE = 0.9  # of available memory, for all engines together, unless --memory is given
WORKLOAD = ("model", "engines", "prompts", "weights", "gguf", "threads")  # arguments that identify every run
STARTED = count()  # numbers the workers' logs
INTERRUPTED = 130  # exit status after Ctrl-C


def main() -> None:
    args = arguments()
    report("preparing")
    weights, absent = prepared(args)
    run = chosen(args)
    name = f"peers-{args.model}" + (f"-w{args.weights}" if args.weights < 16 else "")
    name += "" if run.protocol == "same" else f"-{run.protocol}"
    workload = {field: getattr(args, field) for field in (*WORKLOAD, *run.fields)}
    journal = Journal(peers_dir() / "journals", name, {**workload, "commit": commit()}, args.resume)
    context = load_config(locate(args.model)).context
    pool = Pool(lambda engine, module: _start(engine, module, args.threads), args.timeout)
    try:
        run.measure(args, _bench(args, weights, pool, journal), context)
    except KeyboardInterrupt:
        print(shown(cells(journal.records, run.protocol, args.weights)))
        report("interrupted: nothing was appended; --resume continues")
        raise SystemExit(INTERRUPTED) from None
    finally:
        pool.close()
    table = cells(journal.records, run.protocol, args.weights)
    largest = fitting(max(args.prompts), context), max(args.requests)
    table += [cell_of((name, *largest), run.protocol, args.weights, why=why) for name, why in absent.items()]
    keep("peers", workload | {"peers": _versions(journal.records)}, list(map(fields_of, table)), shown(table), args.to)


def prepared(args: Namespace) -> tuple[dict[str, Path], dict[str, str]]:
    """Install each engine's environment. Returns the engines' weights, and the reasons of those that failed."""
    weights, absent = dict[str, Path](), dict[str, str]()
    for name in args.engines:
        try:
            python_of(ENGINES[name].environment, report)
            weights[name] = weights_of(ENGINES[name], args.model, args.weights, report, args.gguf)
        except NotInstalled as error:
            report(f"{name} is left out: {error}")
            absent[name] = str(error)
    return weights, absent


def _bench(args: Namespace, weights: Mapping[str, Path], pool: Pool, journal: Journal) -> Bench:
    folder = locate(args.model)
    config, tokenizer = load_config(folder), Tokenizer.from_directory(folder)
    base = Demand(
        requests=1,
        prompt=0,
        threads=args.threads,
        token_bytes=token_bytes(Shape.of(config, args.model), "bfloat16"),
        head_dim=config.head_dim,
        groups=config.num_heads // config.num_kv_heads,
        bits=args.weights,
    )
    return Bench(
        engines=weights,
        base=base,
        prompts=lambda count, length: prompts(tokenizer, count, length),
        pool=pool,
        journal=journal,
        schedule=Schedule(args.turns, args.steps, args.timeout),
        memory=args.memory or int(available_bytes() * MEMORY_SHARE),
        report=report,
    )


def _start(engine: str, module: str, threads: int) -> Worker:
    python = python_of(ENGINES[engine].environment, report)
    log = peers_dir() / "logs" / f"{engine}-{next(STARTED)}.log"
    return Worker([python, "-m", f"bench.peers.workers.{module}"], log, threads, REPOSITORY)


def _versions(records: list[Record]) -> str:
    """Return the versions of the engines that ran, by environment."""
    starts = [record for record in records if record["kind"] == "start"]
    versions = {ENGINES[start["engine"]].environment: start["facts"].get("version") for start in starts}
    return "; ".join(f"{name} {version}" for name, version in versions.items())


def arguments(argv: Sequence[str] | None = None) -> Namespace:
    parser = command_line(__doc__, "python -m bench.peers")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--equal-bytes", type=parse_bytes, metavar="BYTES", help="largest batch in equal cache bytes")
    what.add_argument("--resident", action="store_true", help="peak memory and start time of each engine alone")
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
    # The defaults depend on the measurement.
    args.prompts = args.prompts or ((8192,) if args.equal_bytes or args.resident else (512, 4096, 8192))
    args.batch_prompts = args.batch_prompts or args.prompts
    args.requests = args.requests or ((8,) if args.resident else (1, 4, 8, 16))
    return args


if __name__ == "__main__":
    main()
