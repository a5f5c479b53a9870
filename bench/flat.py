"""flat: the resident memory of an engine's process while it serves a thousand requests, and its parts.

    python -m bench.flat                            SmolLM2, 8 slots, 1,000 requests: a few minutes

Prompts and answers of random lengths pass through the loop that the server's engine process runs. Resident memory is
sampled at the end of every request. Weights, slots and staging are known to the byte. The remainder is reported, with
the process's mappings at each stage.
"""

import argparse
import importlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from bench.resident import Resident, resident

if TYPE_CHECKING:
    from ringkv.base.request import Request
    from ringkv.engine.engine import LocalEngine

EARLY = 100  # requests before drift is counted
PROGRESS = 100  # requests between progress lines
MiB = 1 << 20


@dataclass(frozen=True)
class Flat:
    """Bytes of the engine's parts, and resident bytes during the run."""

    weights: int
    slots: int
    staging: int
    early: int  # resident after the first 100
    late: int  # after the last
    peak: int

    @property
    def known(self) -> int:
        return self.weights + self.slots + self.staging

    @property
    def remainder(self) -> int:
        return self.peak - self.known

    @property
    def drift(self) -> int:
        return self.late - self.early


def main() -> None:
    args = _arguments()
    if args.build:
        _engine(args)
        return
    # Compile in another process: the graphs stay on disk and the compiler's memory is not counted here.
    subprocess.run([sys.executable, "-m", "bench.flat", "--build", *sys.argv[1:]], check=True)
    stages = {"python": resident()}
    stages |= {f"import {module}": _after(module) for module in ("torch", "ringkv.engine.build", "bench.results")}
    engine = _engine(args)
    stages["engine built"] = resident()
    series = list(serve(engine, _requests(args, engine.limits.vocab)))
    stages["all served"] = resident()
    found = summary(engine, series)
    figures = [asdict(found), *({"when": when, **asdict(sizes)} for when, sizes in stages.items())]
    workload = {name: getattr(args, name) for name in ("model", "requests", "slots", "budget", "longest", "answer")}
    derived = {"remainder": found.remainder, "growth": found.drift}
    rows = [_in_bytes(figures[0] | derived), *map(_in_bytes, figures[1:])]
    importlib.import_module("bench.results").keep("flat", workload, rows, shown(figures))


def _in_bytes(figure: Mapping[str, Any]) -> dict[str, Any]:
    """Append "_bytes" to the names of sizes, for the table of results."""
    return {f"{name}_bytes" if isinstance(value, int) else name: value for name, value in figure.items()}


def _after(module: str) -> Resident:
    importlib.import_module(module)
    return resident()


def _engine(args: argparse.Namespace) -> "LocalEngine":
    from ringkv.engine.build import build
    from ringkv.models.config import load_config
    from ringkv.plan.memory import available_bytes
    from ringkv.plan.options import Options
    from ringkv.plan.resolve import resolve
    from ringkv.residency.locate import locate

    folder = locate(args.model)
    options = Options(slots=args.slots, kv_budget=args.budget, prompt_tokens=args.prompt_tokens)
    return build(resolve(folder, load_config(folder), options, available_bytes()))


def _requests(args: argparse.Namespace, vocab: int) -> Iterator["Request"]:
    """Yield requests of uniform lengths and random tokens. Every tenth samples with penalties and logprobs."""
    from ringkv.base.request import Request
    from ringkv.base.sampling import SamplingParams

    rng = Random(0)
    for number in range(args.requests):
        tokens = tuple(rng.choices(range(vocab), k=rng.randint(1, args.longest)))
        options = {"top_p": 0.9, "temperature": 1.0, "presence_penalty": 0.5, "logprobs": 5} if number % 10 == 9 else {}
        sampling = SamplingParams(max_tokens=rng.randint(1, args.answer), ignore_eos=True, **options)  # type: ignore[arg-type]
        yield Request(f"{number}", tokens, sampling)


def serve(engine: Any, requests: Iterator["Request"]) -> Iterator[int]:
    """Yield resident bytes at the end of each request. Twice as many requests are open as there are slots."""
    from ringkv.base.events import Failed, Finished
    from ringkv.scheduler.loop import Loop

    loop, open_, ended = Loop(engine), 0, 0
    while True:
        while open_ < 2 * engine.limits.slots and (request := next(requests, None)) is not None:
            assert loop.submit(request) == [], "a request was refused"
            open_ += 1
        if not open_:
            return
        for event in loop.step():
            assert not isinstance(event, Failed), event
            if isinstance(event, Finished):
                open_ -= 1
                ended += 1
                if ended % PROGRESS == 0:
                    print(f"{ended:,} requests have ended", flush=True)
                yield _resident_bytes()


def _resident_bytes() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


def summary(engine: Any, series: Sequence[int]) -> Flat:
    limits = engine.limits
    slots = limits.slots * limits.capacity * limits.entry_bytes
    early = series[min(EARLY, len(series)) - 1]
    return Flat(engine.weight_bytes, slots, limits.held_bytes - slots, early, series[-1], max(series))


def shown(figures: Sequence[Mapping[str, Any]]) -> str:
    from bench.results import table

    found = Flat(**figures[0])
    parts = (
        ("weights", found.weights),
        ("slots", found.slots),
        ("staging", found.staging),
        ("remainder", found.remainder),
        ("peak resident", found.peak),
        (f"last request less the {EARLY}th", found.drift),
    )
    rows = [
        (one["when"], *(_mb(one[name]) for name in ("total", "own", "files")), _largest(one["largest"]))
        for one in figures[1:]
    ]
    head = ("after", "resident", "own", "mapped files", "largest files")
    return "\n\n".join((table(("part", "MiB"), [(name, _mb(size)) for name, size in parts]), table(head, rows)))


def _largest(files: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {_mb(size)}" for name, size in list(files.items())[:3])


def _mb(size: int) -> str:
    return f"{size / MiB:,.0f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--prompt-tokens", type=int, default=8192, help="longest prompt that the engine accepts")
    parser.add_argument("--longest", type=int, default=768, help="longest prompt that is sent")
    parser.add_argument("--answer", type=int, default=16, help="longest answer")
    parser.add_argument("--build", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
