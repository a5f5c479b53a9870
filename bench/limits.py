"""limits: decode and prefill against the machine's floor, and the cost of a step as prompts grow.

    python -m bench.limits                          SmolLM2 and Qwen2.5-Coder-1.5B, about half an hour
    python -m bench.limits --model smollm2
    python -m bench.limits --weights bf16 int8 int4     quantised weights too

Engines of 1 and of 8 slots alternate with probes of memory and matrix products, so that machine drift cancels. Figures
are medians; a probe's figure is its maximum. Another engine stages prompts of several lengths, one per lane (three
times the memory), keeps the same number of tokens of each, and decodes a few steps of each in turn. The benchmark
prints the tables and appends the figures to bench/results/.
"""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import torch

from bench.limits_tables import compression_table, growth_table, speed_table
from bench.results import keep
from ringkv.base.config import Weights
from ringkv.base.engine import prefill
from ringkv.base.kv import Layout
from ringkv.base.request import Request
from ringkv.bench.probe import Ceiling, Machine
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.models.config import ModelConfig, load_config
from ringkv.plan import floor
from ringkv.plan.floor import Cost
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.residency.locate import locate
from ringkv.scheduler.round import decode, live_entries, make_request

MODELS = {"smollm2": (2048, 4096, 8192), "qwen2.5-coder-1.5b": (2048, 8192, 30000)}  # prompts of equal cost
SLOTS = (1, 8)


@dataclass(frozen=True)
class Speed:
    """Medians of a decode step with this many slots or of one prompt, and the terms of the floor."""

    model: str
    weights: str
    what: str  # "decode" or "prefill"
    slots: int
    prompt: int
    seconds: float
    need_bytes: float
    need_operations: float
    bandwidth: float  # of the probes for this many bytes
    matrix: float
    share: float  # floor over measured seconds


@dataclass(frozen=True)
class Compression:
    """The steps after a prompt: scoring, compression, and the copy into a slot. Seconds."""

    model: str
    prompt: int
    kept: int
    score_s: float  # votes, and selection by votes
    compress_s: float  # the rest of compression, which a policy without votes needs too
    insert_s: float
    of_prefill: float  # scoring over prefill
    per_1k_s: float  # compression without votes, plus the copy, per thousand kept tokens


@dataclass(frozen=True)
class Growth:
    """A decode step after a prompt of this length, in slots of a fixed budget."""

    model: str
    prompt: int
    slots: int
    budget: int
    step_bytes: float  # weights and live entries, which a step must read
    step_s: float
    over_shortest: float  # this step's time over that of the shortest prompt


FLOOR: Mapping[Weights, str] = {"bf16": "bfloat16", "int8": "int8", "int4": "int4"}  # the names that `floor` takes


class BenchModel:
    """One model at one precision: its configuration and its folder."""

    def __init__(self, model: str, budget: int, stored: Weights) -> None:
        self.model, self.budget, self.stored, self.weights = model, budget, stored, FLOOR[stored]
        self.folder: Path = locate(model)
        self.config: ModelConfig = load_config(self.folder)

    def engine(self, slots: int, prompt_tokens: int, lanes: int = 1) -> LocalEngine:
        print(f"building {self.model}, {self.weights}, {slots} slots", flush=True)
        options = Options(
            slots=slots, prompt_tokens=prompt_tokens, kv_budget=self.budget, weights=self.stored, lanes=lanes
        )
        return build(resolve(self.folder, self.config, options, available_bytes()))

    def step(self, engine: LocalEngine, live: float) -> Cost:
        limits = engine.limits
        return floor.step(self.config, limits.slots, live, limits.entry_bytes, self.weights)


def main() -> None:
    args = _arguments()
    machine = Machine(torch.device("cpu"))
    for model in [args.model] if args.model else list(MODELS):
        for stored in args.weights:
            _measure(BenchModel(model, args.budget, stored), machine, args)


def _measure(one: BenchModel, machine: Machine, args: argparse.Namespace) -> None:
    """Measure one model at one precision; print and append the figures."""
    speeds, compression = _speeds(one, machine, args.prompt_tokens, args.steps, args.rounds)
    figures = [
        *_probes(machine.ceiling),
        *({"kind": "speed", **asdict(speed)} for speed in speeds),
    ]
    if one.stored == "bf16":  # the other figures do not depend on the weights' dtype
        growths = _growth(one, args.lengths or MODELS[one.model], args.steps, args.rounds)
        figures.append({"kind": "compression", **asdict(compression)})
        figures += [{"kind": "growth", **asdict(growth)} for growth in growths]
    shown = "\n\n".join((speed_table(figures), compression_table(figures), growth_table(figures)))
    fields = ("budget", "prompt_tokens", "steps", "rounds")
    workload = {"model": one.model, "weights": one.stored} | {field: getattr(args, field) for field in fields}
    keep("limits", workload, figures, shown)


def _probes(ceiling: Ceiling) -> Iterator[dict[str, Any]]:
    """Yield the rate of each way to read memory, for each size, and of each matrix product."""
    for size, ways in ceiling.reading.items():
        yield from ({"kind": "probe", "what": "read", "amount": size, "way": way, "rate": ways[way]} for way in ways)
    yield from ({"kind": "probe", "what": "product", "way": way, "rate": rate} for way, rate in ceiling.matrix.items())


def _speeds(one: BenchModel, machine: Machine, prompt: int, steps: int, rounds: int) -> tuple[list[Speed], Compression]:
    """Measure engines of 1 and 8 slots in turn. Both count for prefill, which does not depend on the slots."""
    engines = [one.engine(slots, prompt) for slots in SLOTS]
    request = make_request(one.config.vocab_size, prompt, steps + 1)
    taken: dict[int, list[float]] = {slots: [] for slots in SLOTS}
    prompts: list[PromptTimes] = []
    for turn in range(rounds + 1):
        machine.run()
        for engine in engines:
            done = _prompt(engine, request)
            step = decode(engine, request, steps)
            if turn:  # the first warms up
                prompts.append(done)
                taken[engine.limits.slots] += step
        print(f"{one.model}: turn {turn} of {rounds}", flush=True)
    layout = prompts[0].layout
    ceiling, entry = machine.ceiling, engines[0].limits.entry_bytes
    prefilled = median(done.prefill for done in prompts)
    speeds = [
        _speed(one, "decode", engine.limits.slots, prompt, median(taken[engine.limits.slots]), need, ceiling)
        for engine in engines
        for need in [one.step(engine, _live(layout, steps))]
    ]
    prompt_need = floor.prefill(one.config, prompt, entry, one.weights)
    speeds.append(_speed(one, "prefill", 1, prompt, prefilled, prompt_need, ceiling))
    return speeds, _compression(one, prompts, prefilled)


class PromptTimes(NamedTuple):
    """Times from a prompt to its slot, in seconds."""

    prefill: float
    without_votes: float
    compress: float
    insert: float
    layout: Layout


def _prompt(engine: LocalEngine, request: Request) -> PromptTimes:
    times = [time.perf_counter()]
    prefill(engine, request)
    times.append(time.perf_counter())
    engine.compress(0, replace(engine.default_kv, policy="streaming"))
    times.append(time.perf_counter())
    layout = engine.compress(0, engine.default_kv)[0]
    times.append(time.perf_counter())
    engine.insert(0, 0, request)
    times.append(time.perf_counter())
    engine.release(0)
    return PromptTimes(*(after - before for before, after in pairwise(times)), layout)


def _compression(one: BenchModel, prompts: Sequence[PromptTimes], prefilled: float) -> Compression:
    layout = prompts[0].layout
    kept = layout.live(layout.prompt)
    plain, whole, insert = (
        median(getattr(done, name) for done in prompts) for name in ("without_votes", "compress", "insert")
    )
    score, each = whole - plain, (plain + insert) / kept * 1000
    return Compression(one.model, layout.prompt, kept, score, plain, insert, score / prefilled, each)


def _speed(one: BenchModel, what: str, slots: int, prompt: int, taken: float, need: Cost, ceiling: Ceiling) -> Speed:
    rates = ceiling.rates(need.bytes)
    share = need.seconds(rates) / taken
    return Speed(
        one.model, one.weights, what, slots, prompt, taken, need.bytes, need.operations, rates.bandwidth, rates.matrix,
        share,
    )  # fmt: skip


def _growth(one: BenchModel, lengths: Sequence[int], steps: int, rounds: int) -> list[Growth]:
    """Prefill all prompts, one per lane; then decode a few steps of each in turn."""
    longest = one.config.context - steps - 1
    lengths = sorted({min(length, longest) for length in lengths})
    engine = one.engine(max(SLOTS), max(lengths), len(lengths))
    staged = []
    for lane, length in enumerate(lengths):
        request = make_request(one.config.vocab_size, length, steps + 1)
        prefill(engine, request, lane)
        (layout,) = engine.compress(lane, engine.default_kv)
        staged.append((request, layout))
        print(f"{one.model}: prompt of {length:,} tokens prefilled", flush=True)
    taken: dict[int, list[float]] = {length: [] for length in lengths}
    for turn in range(rounds + 1):
        for length in lengths if turn % 2 else reversed(lengths):
            lane = lengths.index(length)
            done = decode(engine, staged[lane][0], steps, lane)
            taken[length] += done if turn else ()
    step = {length: median(taken[length]) for length in lengths}
    return [
        Growth(
            model=one.model,
            prompt=length,
            slots=engine.limits.slots,
            budget=one.budget,
            step_bytes=one.step(engine, _live(staged[lengths.index(length)][1], steps)).bytes,
            step_s=step[length],
            over_shortest=step[length] / step[lengths[0]],
        )
        for length in lengths
    ]


def _live(layout: Layout, steps: int) -> float:
    return fmean(live_entries(layout, steps))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="one model only")
    parser.add_argument("--weights", nargs="+", choices=FLOOR, default=["bf16"], help="%(choices)s (bf16)")
    parser.add_argument("--budget", type=int, default=2048)
    parser.add_argument("--prompt-tokens", type=int, default=4096)
    parser.add_argument("--lengths", type=int, nargs="+", help="prompt lengths whose steps are compared")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
