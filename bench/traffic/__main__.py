"""ringkv's server beside vLLM's, llama.cpp's and OpenVINO's, under the same load, in the same bytes of cache.

    python -m bench.traffic                                      short prompts, 16 and 64 clients, all engines
    python -m bench.traffic --workload azure-conv --rates 0.5,1,2
    python -m bench.traffic --run NAME ...                       continue or extend a run

Workloads are short (prompts of 40 to 400 tokens, answers of 32 to 256), and the traces azure-conv, azure-code and
mooncake, whose arrivals are scaled to each rate. Temperature is 0.7 and top-p 0.95. Every answer has the length that
its request names. The clients are vLLM's own serving benchmark, the same process for all engines. Each server starts
once. Engines take turns, and the others are stopped meanwhile. An engine leaves the ladder of rates once less than
--stop of its requests meet the objective: first token in 2 s, then 150 ms per token.

The first run installs each peer in its own environment under ringkv's cache folder and converts the weights for it.
Every turn is written to a journal at once, so after Ctrl-C the same command with --run continues. Commands with the
same --run make one run. The figures are appended to bench/results/measurements.jsonl; `python -m bench.report` writes
them into the docs.
"""

from argparse import ArgumentTypeError, Namespace
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import count
from operator import itemgetter
from pathlib import Path
from signal import SIGTERM, default_int_handler, signal
from typing import Any

from bench.arguments import command_line, names_of, numbers, report
from bench.data import REPOSITORY
from bench.journal import Journal
from bench.peers.engines import ENGINES as PEERS
from bench.peers.install import NotInstalled, peers_dir, python_of
from bench.peers.trial import weight_bytes
from bench.peers.weights import weights_of
from bench.peers.worker import Worker
from bench.results import TABLE, append, cells_of, fields_of, provenance, rows
from bench.traffic.engines import ENGINES, Demand, Started, staging_bytes
from bench.traffic.figures import TrafficCell, TrafficTurn, measured, shown
from bench.traffic.loads import OUTPUTS, PROMPTS, Load, Texts, arriving, in_turn
from bench.traffic.server import Server, free_port
from bench.traffic.traces import FILES, NoTrace
from bench.traffic.turns import READY_S, Servers, Turns, case_of
from ringkv.models.config import load_config
from ringkv.plan.complete import default_threads
from ringkv.plan.footprint import token_bytes
from ringkv.plan.memory import available_bytes
from ringkv.plan.shapes import Shape
from ringkv.plan.units import parse_bytes
from ringkv.residency.locate import locate
from ringkv.text.tokenizer import Tokenizer

STARTED = count()  # numbers the servers' logs
INTERRUPTED = 130  # exit status after Ctrl-C
COLUMNS = ("model", "engine", "settings", "workload", "shrink", "clients", "per_minute")
DEFAULT = ("ringkv", "vllm", "llama.cpp", "openvino")
WORKLOADS = ("short", *FILES)
CACHE = "1.5GB"


def main() -> None:
    args = arguments()
    signal(SIGTERM, default_int_handler)  # `finally` must end the servers, which have sessions of their own
    context = load_config(locate(args.model)).context
    need = demand(args, context)
    try:
        wanted = loads(args, need)
    except NoTrace as error:
        return report(f"{error}")
    for load in wanted:
        if load.dropped:
            report(f"{load.name}: {load.dropped} requests are too long and left out; {len(load.asks)} remain")
    run = args.run or datetime.now(UTC).isoformat(timespec="seconds")
    report(f"run {run}")
    weights = installed(args)
    settings = {name: ENGINES[name].settings(need) for name in weights}
    journal = Journal(peers_dir() / "journals", "traffic", {"run": run}, resume=True)
    try:
        _measure(args, need, wanted, weights, settings, journal)
    except KeyboardInterrupt:
        print(shown(cells(journal.records, wanted, args.model)))
        report(f"interrupted: nothing was appended; the same command with --run {run} continues")
        raise SystemExit(INTERRUPTED) from None
    workload = {"threads": args.threads, "weights": "16 bits", "turns": args.turns}
    about = provenance() | {"run": run}
    append(args.to, rows("traffic", workload, map(fields_of, cells(journal.records, wanted, args.model)), about))
    caption = f"{args.threads} threads, {args.cache / 1e9:g} GB of cache. {about['processor']}; run {run}."
    print(f"\n{shown(cells(journal.records))}\n\n{caption}")


def loads(args: Namespace, need: Demand) -> list[Load]:
    """Return the loads in order. Raises NoTrace."""
    if args.clients:
        return [in_turn(clients, args.each) for clients in args.clients]
    return [arriving(args.workload, rate, args.seconds, need, args.shrink) for rate in args.rates]


def demand(args: Namespace, context: int) -> Demand:
    """Return what the servers must carry: the workload's limits, whatever requests a rate brings."""
    short = args.workload == "short"
    path = locate(args.model)
    config = load_config(path)
    need = Demand(
        served=args.model,
        context=context,
        token_bytes=token_bytes(Shape.of(config, args.model), "bfloat16"),
        cache_bytes=args.cache,
        requests=args.at_once,
        prompt=PROMPTS[1] if short else args.prompt,
        output=OUTPUTS[1] if short else args.output,
        threads=args.threads,
        store=args.store,
    )
    return replace(need, staging=staging_bytes(path, config, need))


def installed(args: Namespace) -> dict[str, Path]:
    """Return the weights of each engine whose environment and weights could be made."""
    weights = dict[str, Path]()
    for name in args.engines:
        engine = ENGINES[name]
        try:
            engine.program(report)
            weights[name] = weights_of(PEERS[engine.weights], args.model, 16, report, "bf16")
        except NotInstalled as error:
            report(f"{name} is left out: {error}")
    return weights


def cells(records: Sequence[Mapping[str, Any]], wanted: Sequence[Load] = (), model: str = "") -> list[TrafficCell]:
    """Return the journal's cells; only those of the wanted loads of a model, if there are any."""
    by_case: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    cases = [case_of(load) for load in wanted]
    for record in records:
        mine = record.get("model") == model and any(case.items() <= record.items() for case in cases)
        if record["kind"] in ("turn", "failed") and (mine or not cases):
            by_case[itemgetter(*COLUMNS)(record)].append(record)
    return [_cell(dict(zip(COLUMNS, case, strict=True)), each) for case, each in by_case.items()]


def _cell(case: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> TrafficCell:
    turns = cells_of(TrafficTurn, (record for record in records if record["kind"] == "turn"))
    why = next((record["why"] for record in records if record["kind"] == "failed"), None)
    return TrafficCell(**case, cache_bytes=records[0]["cache_bytes"], **(measured(turns) if turns else {"why": why}))


def _measure(
    args: Namespace,
    need: Demand,
    wanted: Sequence[Load],
    weights: Mapping[str, Path],
    settings: Mapping[str, str],
    journal: Journal,
) -> None:
    servers = Servers(
        start=lambda engine, need: _start(engine, need, weights[engine], args),
        demand=need,
        ready={name: ENGINES[name].ready for name in weights},
        weights={name: weight_bytes(path) for name, path in weights.items()},
        available=available_bytes,
        report=report,
    )
    log = peers_dir() / "logs" / "traffic-clients.log"
    clients = Worker([python_of("vllm", report), "-m", "bench.traffic.client"], log, 1, REPOSITORY)
    try:
        clients.call("ready", READY_S)
        texts = Texts(Tokenizer.from_directory(locate(args.model)))
        turns = Turns(servers, clients, texts, journal, args.model, args.turns, args.stop, report)
        turns.measure(wanted, list(weights), settings)
    finally:
        servers.close()
        clients.kill()


def _start(engine: str, need: Demand, weights: Path, args: Namespace) -> Server:
    kind, port = ENGINES[engine], free_port()
    start = Started(need, weights, locate(args.model) / "tokenizer.json", kind.program(report), port)
    return Server(
        kind.command(start), kind.variables(need), port, peers_dir() / "logs" / f"traffic-{engine}-{next(STARTED)}.log"
    )


def arguments(argv: Sequence[str] | None = None) -> Namespace:
    parser = command_line(__doc__, "python -m bench.traffic")
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
    add("--run", type=_run, help="a name that begins with the date; commands with the same one make one run (the time)")
    add("--to", type=Path, default=TABLE, metavar="FILE", help="table to append to (bench/results/measurements.jsonl)")
    args = parser.parse_args(argv)
    if (args.workload == "short") == bool(args.rates) or (args.rates and args.clients):
        parser.error("a trace needs --rates, and short prompts take none")
    if args.workload == "short":
        args.clients = args.clients or (16, 64)
    args.at_once = args.at_once or max(args.clients or (32,))
    return args


def _rates(text: str) -> tuple[float, ...]:
    rates = tuple(float(number) for number in text.split(","))
    if list(rates) != sorted(rates) or min(rates) <= 0:
        raise ArgumentTypeError("rates must be above 0 and rise")
    return rates


def _run(text: str) -> str:
    """Return the name. Raises unless runs in the order of their names are in the order of time."""
    try:
        date.fromisoformat(text[:10])
    except ValueError:
        raise ArgumentTypeError(f"a run begins with its date, such as {date.today()}-a") from None
    return text


if __name__ == "__main__":
    main()
