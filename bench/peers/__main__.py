"""`python -m bench.peers`: install the peers, measure, print the table and append the figures."""

from argparse import Namespace
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from bench.arguments import report
from bench.data import REPOSITORY
from bench.journal import Journal, Record
from bench.peers.analyse import cells
from bench.peers.arguments import arguments
from bench.peers.cells import PeerCell, shown
from bench.peers.engines import ENGINES, Demand
from bench.peers.install import NotInstalled, peers_dir, python_of
from bench.peers.pool import Pool
from bench.peers.protocols import Bench, Run, chosen
from bench.peers.trial import Schedule
from bench.peers.weights import weights_of
from bench.peers.worker import Worker
from bench.peers.workload import fitting, prompts
from bench.results import commit, fields_of, keep
from ringkv.models.config import load_config
from ringkv.plan.footprint import token_bytes
from ringkv.plan.memory import available_bytes
from ringkv.plan.shapes import Shape
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
    if args.install_only:
        return
    run = chosen(args)
    name = f"peers-{args.model}" + (f"-w{args.weights}" if args.weights < 16 else "") + run.suffix
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
    found = cells(journal.records, run.protocol, args.weights)
    found += [_left_out(name, why, args, run, context) for name, why in absent.items()]
    keep("peers", workload | {"peers": _versions(journal.records)}, list(map(fields_of, found)), shown(found), args.to)


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
    found = {ENGINES[start["engine"]].environment: start["facts"].get("version") for start in starts}
    return "; ".join(f"{name} {version}" for name, version in found.items())


def _left_out(name: str, why: str, args: Namespace, run: Run, context: int) -> PeerCell:
    engine = ENGINES[name]
    prompt = fitting(max(args.prompts), context)
    return PeerCell(
        engine=name,
        prompt=prompt,
        requests=max(args.requests),
        weights=engine.weights[args.weights],
        kept=engine.kept(prompt),
        protocol=run.protocol,
        why=why,
    )


if __name__ == "__main__":
    main()
