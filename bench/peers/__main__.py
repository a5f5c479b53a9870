"""`python -m bench.peers`: installs, measures, prints, keeps."""

from argparse import Namespace
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from bench.peers.arguments import arguments
from bench.peers.cells import Cell, as_figures
from bench.peers.engines import ENGINES, Need
from bench.peers.install import NotInstalled, peers_dir, python_of
from bench.peers.journal import Journal, Record
from bench.peers.pool import Pool
from bench.peers.protocols import Bench
from bench.peers.runs import Run, Texts, chosen, turns
from bench.peers.tables import shown
from bench.peers.weights import REPOSITORY, weights_of
from bench.peers.worker import Worker
from bench.peers.workload import fitting, prompts
from bench.results import commit, keep
from ringkv.models.config import load_config
from ringkv.plan.footprint import token_bytes
from ringkv.plan.memory import available_bytes
from ringkv.plan.shapes import Shape
from ringkv.residency.locate import locate
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.tokenizer import Tokenizer

MEMORY_SHARE = 0.9  # of what is available now, for all engines together, unless --memory says
WORKLOAD = ("model", "engines", "prompts", "weights", "gguf", "threads")  # that every run is told apart by
STARTED = count()  # workers, each with a log of its own
INTERRUPTED = 130  # the status that shells give Ctrl-C


def main() -> None:
    asked = arguments()
    say("preparing")
    there, absent = prepared(asked)
    if asked.install_only:
        return
    run = chosen(asked)
    name = f"peers-{asked.model}" + (f"-w{asked.weights}" if asked.weights < 16 else "") + run.suffix
    workload = {field: getattr(asked, field) for field in (*WORKLOAD, *run.fields)}
    journal = Journal(peers_dir() / "journals", name, {**workload, "commit": commit()}, asked.resume)
    folder = locate(asked.model)
    texts = Texts(Tokenizer.from_directory(folder), ChatTemplate.from_directory(folder), load_config(folder).context)
    pool = Pool(lambda engine, module: _start(engine, module, asked.threads), asked.timeout)
    try:
        run.play(asked, _bench(asked, there, texts, pool, journal), texts)
    except KeyboardInterrupt:
        print(shown(run.cells(asked, journal.records, texts)))
        say("interrupted: nothing was kept; --resume goes on")
        raise SystemExit(INTERRUPTED) from None
    finally:
        pool.close()
    found = run.cells(asked, journal.records, texts)
    found += [_left_out(one, why, asked, run, texts) for one, why in absent.items()]
    keep("peers", workload | {"peers": _versions(journal.records)}, as_figures(found), shown(found), asked.to)


def prepared(asked: Namespace) -> tuple[dict[str, Path], dict[str, str]]:
    """Every engine's weights, its environment installed; and the engines that could not be, with the reason."""
    there, absent = dict[str, Path](), dict[str, str]()
    for name in asked.engines:
        try:
            python_of(ENGINES[name].environment, say)
            there[name] = weights_of(ENGINES[name], asked.model, asked.weights, say, asked.gguf)
        except NotInstalled as error:
            say(f"{name} is left out: {error}")
            absent[name] = str(error)
    return there, absent


def say(text: str) -> None:
    print(text, flush=True)


def _bench(asked: Namespace, there: Mapping[str, Path], texts: Texts, pool: Pool, journal: Journal) -> Bench:
    config = load_config(locate(asked.model))
    base = Need(
        requests=1,
        prompt=0,
        threads=asked.threads,
        token_bytes=token_bytes(Shape.of(config, asked.model), "bfloat16"),
        head_dim=config.head_dim,
        groups=config.num_heads // config.num_kv_heads,
        bits=asked.weights,
    )
    return Bench(
        engines=there,
        base=base,
        prompts=lambda count, length: prompts(texts.tokenizer, count, length),
        pool=pool,
        journal=journal,
        turns=turns(asked),
        memory=asked.memory or int(available_bytes() * MEMORY_SHARE),
        say=say,
    )


def _start(engine: str, module: str, threads: int) -> Worker:
    python = python_of(ENGINES[engine].environment, say)
    log = peers_dir() / "logs" / f"{engine}-{next(STARTED)}.log"
    return Worker([python, "-m", f"bench.peers.workers.{module}"], log, threads, REPOSITORY)


def _versions(records: list[Record]) -> str:
    """Of the engines that ran, by environment."""
    starts = [record for record in records if record["kind"] == "start"]
    found = {ENGINES[start["engine"]].environment: start["facts"].get("version") for start in starts}
    return "; ".join(f"{name} {version}" for name, version in found.items())


def _left_out(name: str, why: str, asked: Namespace, run: Run, texts: Texts) -> Cell:
    engine = ENGINES[name]
    prompt = fitting(max(asked.prompts), texts.context)
    return Cell(
        engine=name,
        prompt=prompt,
        requests=max(asked.requests),
        weights=engine.weights[asked.weights],
        kept=engine.kept(prompt),
        protocol=run.protocol,
        why=why,
    )


if __name__ == "__main__":
    main()
