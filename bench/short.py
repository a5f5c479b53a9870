"""short: what short prompts and few running requests cost, beside an earlier commit and beside passes of their own.

    python -m bench.short d65932a [--model smollm2]

- ten prompts of 30 tokens that arrive together, until each has a token: the earlier commit and this one in turns
- a decode step of 2 requests on an engine with 32 slots and on one with 2
- a pass with chunks of a prompt and 8 slots, and the same as a pass and a decode step
- the time between two tokens of a request while prompts arrive, for three values of --max-step

Figures are medians over alternating turns. Run it on an idle machine.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from bench.beside import checked_out
from bench.data import REPOSITORY
from bench.results import keep, table
from ringkv.base.engine import PrefillChunk, chunks
from ringkv.base.events import Finished, Token
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams

PROMPTS, TOKENS = 10, 30
RUNNING, MANY, FEW = 2, 32, 2
RIDING, CHUNKS, LIVE = 8, (32, 128, 512), 1000
BOUNDS, CLIENTS, SECONDS = (100, 150, 300), 16, 15.0  # milliseconds; of each bound
WORKER = f"""
import json, random, sys, time
from ringkv.base.events import Token
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.engine.build import build
from ringkv.models.config import load_config
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.residency.locate import locate
from ringkv.scheduler.loop import Loop

folder = locate(sys.argv[1])
options = Options(slots={PROMPTS}, kv_budget=512, prompt_tokens=512)
engine = build(resolve(folder, load_config(folder), options, available_bytes()))
loop, numbers, count = Loop(engine), random.Random(1), 0
print("ready", flush=True)
for line in sys.stdin:
    count += 1
    sampling = SamplingParams(max_tokens=64, ignore_eos=True)
    for n in range({PROMPTS}):
        tokens = tuple(numbers.randrange(9, 9000) for _ in range({TOKENS}))
        loop.submit(Request(f"{{count}}-{{n}}", tokens, sampling))
    begun = time.perf_counter()
    names = set()
    while len(names) < {PROMPTS}:
        names |= {{event.request_id for event in loop.step() if isinstance(event, Token)}}
    print(json.dumps(time.perf_counter() - begun), flush=True)
    for n in range({PROMPTS}):
        loop.cancel(f"{{count}}-{{n}}")
"""


def main() -> None:
    args = _arguments()
    figures = [
        *_ten_prompts(args.commit, args.model, args.turns),
        *_few_running(args.model, args.turns),
        *_mixed(args.model, args.turns),
        *_gaps(args.model),
    ]
    head = ("what", "before", "now", "before/now", "target")
    keep("short", {"model": args.model, "before": args.commit}, figures, table(head, list(map(_row, figures))))


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    before, now = one["short_before_s"] * 1e3, one["short_now_s"] * 1e3
    within = f"; {one['within_share']:.1%} are" if "within_share" in one else ""
    return one["what"], f"{before:.1f} ms", f"{now:.1f} ms", f"{one['short_ratio']:.2f}", one["target"] + within


def _figure(what: str, before: list[float], now: list[float], target: str) -> dict[str, Any]:
    old, new = median(before), median(now)
    return {"what": what, "short_before_s": old, "short_now_s": new, "short_ratio": old / new, "target": target}


def _ten_prompts(commit: str, model: str, turns: int) -> Iterator[dict[str, Any]]:
    with checked_out(commit) as folder, _worker(folder, model) as before, _worker(REPOSITORY, model) as now:
        times: list[tuple[float, float]] = [(before(), now()) for _ in range(turns + 2)][2:]
    yield _figure(
        f"{PROMPTS} prompts of {TOKENS} tokens, until each has a token",
        *map(list, zip(*times, strict=True)),
        "at least 4",
    )


@contextmanager
def _worker(sources: Path, model: str) -> Iterator[Callable[[], float]]:
    command, environment = [sys.executable, "-c", WORKER, model], os.environ | {"PYTHONPATH": str(sources / "src")}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=sources, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready == "ready\n", f"the engine of {sources} did not start"

        def measure() -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            print(file=process.stdin, flush=True)
            return float(json.loads(process.stdout.readline()))

        try:
            yield measure
        finally:
            process.kill()


def _few_running(model: str, turns: int) -> Iterator[dict[str, Any]]:
    engines = [_engine(model, slots) for slots in (FEW, MANY)]
    for engine in engines:
        for slot in range(RUNNING):
            _enter(engine, slot, LIVE)
    times = [[_step(engine) for engine in engines] for _ in range(8 * turns)]
    few, many = map(list, zip(*times, strict=True))
    yield _figure(f"step of {RUNNING} requests, {FEW} slots (before) and {MANY} (now)", few, many, "at least 0.9")


def _mixed(model: str, turns: int) -> Iterator[dict[str, Any]]:
    engine = _engine(model, RIDING)
    for slot in range(RIDING):
        _enter(engine, slot, LIVE)
    for size in CHUNKS:
        apart, together = [], []
        for _ in range(2 * turns):
            apart.append(_timed(engine, lambda work: (engine.prefill([work]), engine.forward()), size))
            together.append(_timed(engine, lambda work: engine.prefill([work], feed=True), size))
        target = "at least 1.25" if size == 512 else ""
        yield _figure(f"chunk of {size} and {RIDING} slots: two passes (before) and one (now)", apart, together, target)


def _timed(engine: Any, run: Callable[[PrefillChunk], object], size: int) -> float:
    work = next(chunks(_request("chunk", size, size), 0, engine.begin(_request("chunk", size, size), 0).tokens, size))
    engine.sample().read()
    started = time.perf_counter()
    run(work)
    return time.perf_counter() - started


def _gaps(model: str) -> Iterator[dict[str, Any]]:
    for bound in BOUNDS:
        gaps = sorted(_under_load(_engine(model, CLIENTS, max_step=bound)))
        high = gaps[int(0.99 * len(gaps))]
        within = sum(gap * 1e3 <= 1.2 * bound for gap in gaps) / len(gaps)
        yield {
            "what": f"p99 between two tokens, --max-step {bound} (before)",
            "short_before_s": bound / 1e3,
            "short_now_s": high,
            "short_ratio": bound / 1e3 / high,
            "within_share": within,
            "target": "99% within 1.2 times",
        }


def _under_load(engine: Any) -> list[float]:
    """Return the seconds between two tokens of requests, while clients send their next prompt at once."""
    from ringkv.scheduler.loop import Loop

    loop, random, last, gaps, count = Loop(engine), Random(1), dict[str, float](), [], 0
    begun = time.perf_counter()
    while (now := time.perf_counter()) < begun + SECONDS:
        stats = loop.stats()
        while stats.waiting + stats.prefilling + stats.running < CLIENTS:
            count += 1
            loop.submit(_request(f"{count}", random.randint(40, 400), count, random.randint(32, 256)))
            stats = loop.stats()
        for event in loop.step():
            now = time.perf_counter()
            if isinstance(event, Token):
                if event.request_id in last and now > begun + SECONDS / 5:  # the costs are known by then
                    gaps.append(now - last[event.request_id])
                last[event.request_id] = now
            elif isinstance(event, Finished):
                last.pop(event.request_id, None)
    return gaps


def _engine(model: str, slots: int, **options: Any) -> Any:
    from ringkv.engine.build import build
    from ringkv.models.config import load_config
    from ringkv.plan.memory import available_bytes
    from ringkv.plan.options import Options
    from ringkv.plan.resolve import resolve
    from ringkv.residency.locate import locate

    folder = locate(model)
    chosen = Options(slots=slots, kv_budget=1024, prompt_tokens=1024, **options)
    return build(resolve(folder, load_config(folder), chosen, available_bytes()))


def _enter(engine: Any, slot: int, tokens: int) -> None:
    request = _request(f"{slot}", tokens, slot, 10**6)
    for work in chunks(request, 0, engine.begin(request, 0).tokens, engine.limits.chunk):
        engine.prefill([work])
    engine.insert(0, slot, request)


def _step(engine: Any) -> float:
    started = time.perf_counter()
    engine.sample().read()
    engine.forward()
    return time.perf_counter() - started


def _request(name: str, tokens: int, seed: int, answer: int = 64) -> Request:
    prompt = tuple(Random(seed).choices(range(9, 9000), k=tokens))
    return Request(name, prompt, SamplingParams(max_tokens=answer, temperature=0.7, top_p=0.95, ignore_eos=True))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--turns", type=int, default=6)
    return parser.parse_args()


if __name__ == "__main__":
    main()
