"""threads: the cost of HTTP and tokenisation to an engine on the same cores, by spin count and process priority.

    python -m bench.threads                         SmolLM2, 8 clients: about ten minutes

The same requests, alternately short and long prompts, go through the engine alone, which gets token ids, and through
`ringkv serve`, which gets texts over HTTP, tokenises and streams. Each client sends its next text when the last is
answered, so texts are tokenised while other requests decode. Every setting has its own engine and server. All are
started first, alternate, and are idle between their turns. The clients run on the same cores; their CPU time is listed.
"""

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

from bench.load import Alone, EngineSettings, Served, Texts, alone, served, texts

LENGTHS = (256, 3000)  # tokens of each client's prompts, alternating


class Setting(NamedTuple):
    name: str
    environment: Mapping[str, str] = {}
    threads: int | None = None  # of the engine; None: one per CPU of the affinity mask
    nice: int = 0  # of the HTTP process; higher is lower priority


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("as shipped"),
        Setting("HTTP process niced", nice=10),
        Setting("spins 100", {"GOMP_SPINCOUNT": "100"}),
        Setting("spins 10,000", {"GOMP_SPINCOUNT": "10000"}),
        Setting("spins 300,000", {"GOMP_SPINCOUNT": "300000"}),
        Setting("one thread", threads=1),
    )
}


@dataclass(frozen=True)
class Round:
    """Wall seconds for the whole load, and CPU seconds."""

    alone: float
    served: float
    http: float  # CPU seconds of the server's HTTP process
    clients: float  # CPU seconds


@dataclass(frozen=True)
class Loss:
    """The medians of one setting."""

    setting: str
    alone_s: float
    served_s: float
    loss: float  # 1 - alone / served, median over turns
    http_cpu_s: float
    clients_cpu_s: float
    tokens_per_s: float  # generated tokens of all clients over HTTP


def main() -> None:
    args = _arguments()
    from bench.results import keep

    load = texts(args.model, args.clients, LENGTHS * args.each)
    turns: dict[str, list[Round]] = {name: [] for name in args.settings}
    with ExitStack() as stack:
        sides = {name: _start(stack, SETTINGS[name], args) for name in args.settings}
        for number in range(args.rounds + 1):
            for name, side in sides.items():
                answer = args.answer if number else 2  # the first turn warms up
                turns[name].append(_turn(*side, load, answer, served_first=number % 2 == 0))
                print(f"turn {number} of {args.rounds}: {name}, {turns[name][-1]}", flush=True)
    generated = args.answer * sum(map(len, load))
    figures = [asdict(_loss(name, done[1:], generated)) for name, done in turns.items()]
    names = ("model", "clients", "each", "answer", "slots", "budget", "rounds")
    keep("threads", {name: getattr(args, name) for name in names}, figures, shown(figures))


def _start(stack: ExitStack, setting: Setting, args: argparse.Namespace) -> tuple[Alone, Served]:
    print(f"starting: {setting.name}", flush=True)
    engine = EngineSettings(args.model, args.slots, args.budget, 2 * max(LENGTHS), setting.threads)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    environment |= setting.environment
    both = stack.enter_context(alone(engine, environment)), stack.enter_context(served(engine, environment))
    _nice(both[1].pid, setting.nice)
    return both


def _nice(pid: int, by: int) -> None:
    """Set the priority of all threads of a process. Linux has one per thread; new threads inherit their creator's."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(thread.name), by)


def _turn(engine: Alone, server: Served, load: Texts, answer: int, served_first: bool) -> Round:
    bare = 0.0 if served_first else engine.run(load, answer)
    http, clients = _cpu(server.pid), time.process_time()
    taken = server.run(load, answer)
    http, clients = _cpu(server.pid) - http, time.process_time() - clients
    return Round(bare or engine.run(load, answer), taken, http, clients)


def _cpu(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _loss(name: str, turns: Sequence[Round], generated: int) -> Loss:
    taken = median(turn.served for turn in turns)
    return Loss(
        setting=name,
        alone_s=median(turn.alone for turn in turns),
        served_s=taken,
        loss=median(1 - turn.alone / turn.served for turn in turns),
        http_cpu_s=median(turn.http for turn in turns),
        clients_cpu_s=median(turn.clients for turn in turns),
        tokens_per_s=generated / taken,
    )


def shown(figures: Sequence[Mapping[str, Any]]) -> str:
    from bench.results import table

    head = ("setting", "engine alone", "served", "loss", "tokens/s served", "HTTP process", "clients")
    rows = [
        (
            one["setting"],
            *(f"{one[name]:.1f} s" for name in ("alone_s", "served_s")),
            f"{one['loss']:.1%}",
            f"{one['tokens_per_s']:.0f}",
            *(f"{one[name]:.1f} s CPU" for name in ("http_cpu_s", "clients_cpu_s")),
        )
        for one in figures
    ]
    return table(head, rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--each", type=int, default=1, help="pairs of a short and a long prompt per client")
    parser.add_argument("--answer", type=int, default=96, help="tokens per answer")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--budget", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    return parser.parse_args()


if __name__ == "__main__":
    main()
