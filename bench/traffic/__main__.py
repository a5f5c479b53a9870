"""`python -m bench.traffic`: install the peers, measure, print the table and append the figures."""

import shlex
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from signal import SIGTERM, signal
from typing import Any

from bench.arguments import report
from bench.data import REPOSITORY
from bench.journal import Journal
from bench.peers.engines import ENGINES as PEERS
from bench.peers.install import NotInstalled, peers_dir, python_of
from bench.peers.trial import weight_bytes
from bench.peers.weights import weights_of
from bench.peers.worker import Worker
from bench.results import append, fields_of, provenance, rows
from bench.traffic.arguments import arguments
from bench.traffic.engines import ENGINES, Demand, Started, staging_bytes
from bench.traffic.figures import TrafficCell, measured, shown, turns_of
from bench.traffic.loads import OUTPUTS, PROMPTS, Load, Texts, arriving, in_turn
from bench.traffic.server import Server, free_port
from bench.traffic.traces import NoTrace
from bench.traffic.turns import READY_S, Servers, Turns, case_of
from ringkv.models.config import load_config
from ringkv.plan.footprint import token_bytes
from ringkv.plan.memory import available_bytes
from ringkv.plan.shapes import Shape
from ringkv.residency.locate import locate
from ringkv.text.tokenizer import Tokenizer

STARTED = count()  # numbers the servers' logs
INTERRUPTED = 130  # exit status after Ctrl-C
COLUMNS = ("model", "engine", "settings", "workload", "shrink", "clients", "per_minute")


def main() -> None:
    args = arguments()
    signal(SIGTERM, _interrupted)  # `finally` must end the servers, which have sessions of their own
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
    settings = {name: _settings(name, need, args) for name in weights}
    journal = Journal(peers_dir() / "journals", "traffic", {"run": run}, resume=True)
    try:
        _measure(args, need, wanted, weights, settings, journal)
    except KeyboardInterrupt:
        print(shown(cells(journal.records, wanted, args.model)))
        report(f"interrupted: nothing was appended; the same command with --run {run} continues")
        raise SystemExit(INTERRUPTED) from None
    _keep(args, run, cells(journal.records, wanted, args.model), shown(cells(journal.records)))


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
            weights[name] = weights_of(PEERS[engine.weights], args.model, 16, report, args.gguf)
        except NotInstalled as error:
            report(f"{name} is left out: {error}")
    return weights


def cells(records: Sequence[Mapping[str, Any]], wanted: Sequence[Load] = (), model: str = "") -> list[TrafficCell]:
    """Return the journal's cells; only those of the wanted loads of a model, if there are any."""
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    cases = [case_of(load) for load in wanted]
    for record in records:
        mine = record.get("model") == model and any(case.items() <= record.items() for case in cases)
        if record["kind"] in ("turn", "failed") and (mine or not cases):
            found.setdefault(tuple(record[name] for name in COLUMNS), []).append(record)
    return [_cell(dict(zip(COLUMNS, case, strict=True)), each) for case, each in found.items()]


def _cell(case: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> TrafficCell:
    turns = turns_of(record for record in records if record["kind"] == "turn")
    why = next((record["why"] for record in records if record["kind"] == "failed"), None)
    return TrafficCell(**case, cache_bytes=records[0]["cache_bytes"], **(measured(turns) if turns else {"why": why}))


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


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
    clients = _clients()
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
    command = [*kind.command(start), *shlex.split(args.extra.get(engine, ""))]
    return Server(command, kind.variables(need), port, peers_dir() / "logs" / f"traffic-{engine}-{next(STARTED)}.log")


def _clients() -> Worker:
    python = python_of("vllm", report)
    log = peers_dir() / "logs" / "traffic-clients.log"
    return Worker([python, "-m", "bench.traffic.client"], log, 1, REPOSITORY)


def _settings(name: str, need: Demand, args: Namespace) -> str:
    extra = args.extra.get(name)
    return ENGINES[name].settings(need) + (f", {extra}" if extra else "")


def _keep(args: Namespace, run: str, found: Sequence[TrafficCell], table: str) -> None:
    """Print the run's table and append the figures of this command's loads."""
    workload = {"threads": args.threads, "weights": "16 bits", "turns": args.turns}
    about = provenance() | {"run": run}
    append(args.to, rows("traffic", workload, map(fields_of, found), about))
    print(f"\n{table}\n\n{args.threads} threads, {args.cache / 1e9:g} GB of cache. {about['processor']}; run {run}.")


if __name__ == "__main__":
    main()
