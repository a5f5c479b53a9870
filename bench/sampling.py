"""sampling: the cost of each kind of sampling beside greedy, in a decode step of a real model.

    python -m bench.sampling                        SmolLM2 and Qwen2.5-Coder-1.5B, 8 and 64 rows: ten minutes
    python -m bench.sampling --models smollm2 --rows 8

All slots run the same prompt with different seeds. The kinds alternate, a few steps each, so that machine drift
cancels. A sample is timed until its tokens are read. `more` is a kind's median sample less greedy's, over greedy's
whole step.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from bench.peers.workload import prompts
from bench.results import keep, table
from ringkv.base.engine import prefill
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.models.config import load_config
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.residency.locate import locate
from ringkv.text.tokenizer import Tokenizer

MODELS = ("smollm2", "qwen2.5-coder-1.5b")
ROWS = (8, 64)
GREEDY = "greedy"
WARM = SamplingParams(max_tokens=10**6, ignore_eos=True, temperature=0.7)
KINDS: Mapping[str, SamplingParams] = {
    GREEDY: replace(WARM, temperature=0.0),
    "temperature": WARM,
    "top-p": replace(WARM, top_p=0.95),
    "top-k": replace(WARM, top_k=50),
    "penalty": replace(WARM, top_p=0.95, repetition_penalty=1.1),
    "grammar": replace(WARM, ignore_eos=False, grammar="any"),
    "logprobs": replace(WARM, logprobs=5),
}


@dataclass(frozen=True)
class Cost:
    """Medians of one kind of sampling."""

    kind: str
    rows: int
    vocab: int
    sample_s: float
    forward_s: float  # of all kinds
    more: float


def main() -> None:
    args = _arguments()
    for model in args.models.split(","):
        figures = [
            asdict(cost) for rows in args.rows for cost in costs(_times(_engine(model, rows, args), model, args))
        ]
        workload = {"model": model, "prompt": args.prompt, "steps": args.steps, "rounds": args.rounds}
        keep("sampling", workload | {"graphs": args.graphs}, figures, shown(figures))


@dataclass(frozen=True)
class Times:
    """Seconds of every step, by kind."""

    rows: int
    vocab: int
    samples: Mapping[str, Sequence[float]]
    forwards: Mapping[str, Sequence[float]]


def costs(times: Times) -> list[Cost]:
    forward = median([each for all_of in times.forwards.values() for each in all_of])
    sample = {kind: median(seconds) for kind, seconds in times.samples.items()}
    greedy = sample[GREEDY]
    return [
        Cost(kind, times.rows, times.vocab, taken, forward, (taken - greedy) / (greedy + forward))
        for kind, taken in sample.items()
    ]


def _engine(model: str, rows: int, args: argparse.Namespace) -> LocalEngine:
    print(f"building {model}, {rows} slots", flush=True)
    folder = locate(model)
    options = Options(slots=rows, prompt_tokens=args.prompt, kv_budget=args.prompt, graphs=args.graphs)
    return build(resolve(folder, load_config(folder), options, available_bytes()))


def _times(engine: LocalEngine, model: str, args: argparse.Namespace) -> Times:
    (tokens,) = prompts(Tokenizer.from_directory(locate(model)), 1, args.prompt - 1)
    prefill(engine, Request("prompt", tuple(tokens), WARM))
    limits = engine.limits
    samples: dict[str, list[float]] = {kind: [] for kind in KINDS}
    forwards: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn in range(args.rounds + 1):
        for kind, params in KINDS.items():
            done = _steps(engine, tokens, params, args.steps)
            if turn:  # the first warms up
                samples[kind] += [sample for sample, _ in done]
                forwards[kind] += [forward for _, forward in done]
        print(f"{model}, {limits.slots} rows: turn {turn} of {args.rounds}", flush=True)
    return Times(limits.slots, limits.vocab, samples, forwards)


def _steps(engine: LocalEngine, tokens: Sequence[int], params: SamplingParams, steps: int) -> list[tuple[float, float]]:
    """Return the seconds of each sample and each forward pass with a request in every slot; all are free afterwards."""
    slots = range(engine.limits.slots)
    allowed = dict.fromkeys(slots, _mask(engine.limits.vocab)) if params.grammar else {}
    for slot in slots:
        engine.insert(0, slot, Request(f"{slot}", tuple(tokens), replace(params, seed=slot)))
    done = []
    for _ in range(steps):
        started = time.perf_counter()
        engine.sample(allowed=allowed).read()
        sampled = time.perf_counter()
        engine.forward()
        done.append((sampled - started, time.perf_counter() - sampled))
    for slot in slots:
        engine.release(slot)
    return done


def _mask(vocab: int) -> bytes:
    """Return the bits of a grammar that allows every other token in the lower half of the vocabulary."""
    size = 4 * -(-vocab // 32)
    return (b"\x55" * (size // 2)).ljust(size, b"\0")


def shown(figures: Sequence[Mapping[str, Any]]) -> str:
    head = ("rows", "vocabulary", "kind", "sample", "forward", "step is dearer by")
    lines = [
        (
            f"{one['rows']}",
            f"{one['vocab']:,}",
            str(one["kind"]),
            f"{one['sample_s'] * 1e3:.2f} ms",
            f"{one['forward_s'] * 1e3:.1f} ms",
            f"{one['more']:.1%}",
        )
        for one in figures
    ]
    return table(head, lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--prompt", type=int, default=200, help="prompt tokens (200)")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--graphs", choices=["auto", "off"], default="auto", help="off compiles nothing first")
    return parser.parse_args()


if __name__ == "__main__":
    main()
