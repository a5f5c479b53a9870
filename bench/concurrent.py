"""concurrent: long prompts at once with our full cache, other policies and transformers' generate, in one run.

    python -m bench.concurrent                      8 requests of 7,000 tokens on SmolLM2, budget 1,792
    python -m bench.concurrent --device cuda:0 --policies full,snapstream,arkvale --model qwen2.5-coder-1.5b

On a GPU, arkvale has every entry in the host's memory, and the budget's on the GPU.

Our engines and transformers use the same bfloat16 weights and the same prompts. Our engines alternate, by
prompt during prefill and by a few steps during decode, so that machine drift cancels. Figures are medians. The
benchmark prints the table and appends the figures to bench/results/.
"""

import argparse
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers

from bench.device.clock import settle
from bench.peers.workload import prompts as real_text
from bench.results import gpu_name, keep, table
from ringkv.base.engine import prefill
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.engine.build import build
from ringkv.engine.device_memory import free_bytes
from ringkv.engine.engine import LocalEngine
from ringkv.models.config import load_config
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.residency.locate import locate
from ringkv.text.tokenizer import Tokenizer

TURN = 8  # decode steps before the other engine's turn


@dataclass(frozen=True)
class Side:
    """One engine's medians; `prefill_s` is the time of a whole prompt until its slot is filled."""

    engine: str
    entries: int  # per request
    cache_bytes: int  # of all requests together
    prefill_s: float
    step_s: float
    tokens_per_s: float


def main() -> None:
    args = _arguments()
    folder = locate(args.model)
    prompts = real_text(Tokenizer.from_directory(folder), args.requests, args.prompt_tokens)
    engines = {}
    for policy in args.policies.split(","):
        print(f"building {policy}", flush=True)
        memory = available_bytes(), free_bytes(args.device)
        engines[policy] = build(resolve(folder, load_config(folder), _options(policy, args), *memory))
    sides = _ours(engines, prompts, args.steps)
    entry_bytes = engines["full"].limits.entry_bytes
    sides.append(_transformers(folder, prompts, args.steps, entry_bytes, torch.device(args.device)))
    keep("concurrent", vars(args), [asdict(side) for side in sides], _table(sides), device=gpu_name(args.device))


def _options(policy: str, args: argparse.Namespace) -> Options:
    """Return options with a budget for policies that have one."""
    sizes = Options(
        slots=args.requests,
        prompt_tokens=args.prompt_tokens,
        output_tokens=args.steps + 16,
        kv_policy=policy,
        device=args.device,
    )
    on_host = "memory" if policy == "arkvale" and args.device != "cpu" else None
    return sizes if policy == "full" else replace(sizes, kv_budget=args.budget, kv_tier=on_host)


def _ours(engines: dict[str, LocalEngine], prompts: list[list[int]], steps: int) -> list[Side]:
    entered: dict[str, list[float]] = {name: [] for name in engines}
    for slot, tokens in enumerate(prompts):
        for name, engine in engines.items():
            entered[name].append(_enter(engine, slot, tokens))
            print(f"prompt {slot + 1} of {len(prompts)}, {name}: {entered[name][-1]:.1f} s", flush=True)
    step: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(0, steps, TURN):
        for name, engine in engines.items():
            step[name] += [_step(engine) for _ in range(TURN)]
    return [
        Side(
            name,
            engine.limits.capacity,
            engine.limits.slots * engine.limits.capacity * engine.limits.entry_bytes,
            median(entered[name]),
            median(step[name]),
            len(prompts) / median(step[name]),
        )
        for name, engine in engines.items()
    ]


def _enter(engine: LocalEngine, slot: int, tokens: list[int]) -> float:
    request = Request(f"{slot}", tuple(tokens), SamplingParams(max_tokens=10**6, ignore_eos=True))
    engine.admit(request)
    started = time.perf_counter()
    prefill(engine, request)
    engine.insert(0, slot, request)
    settle(engine.batch.device)
    return time.perf_counter() - started


def _step(engine: LocalEngine) -> float:
    started = time.perf_counter()
    engine.sample().read()
    engine.forward()
    settle(engine.batch.device)
    return time.perf_counter() - started


def _transformers(folder: Path, prompts: list[list[int]], steps: int, entry_bytes: int, device: torch.device) -> Side:
    """Run `generate` with its defaults on the batch. Its first step prefills all prompts together."""
    print("transformers: generate", flush=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval().to(device)
    clock = _Clock(time.perf_counter())
    new = min(steps, 24)
    with torch.inference_mode():
        model.generate(
            torch.tensor(prompts, device=device),
            attention_mask=torch.ones(len(prompts), len(prompts[0]), dtype=torch.int64, device=device),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            temperature=None,
            top_p=None,
            stopping_criteria=transformers.StoppingCriteriaList([clock]),
        )
    first, *rest = clock.laps
    entries = len(prompts[0]) + new
    cache = len(prompts) * entries * entry_bytes
    each = len(prompts) / median(rest)
    return Side("transformers", entries, cache, first / len(prompts), median(rest), each)


class _Clock(transformers.StoppingCriteria):
    """A criterion that never stops and records the time of each step."""

    def __init__(self, started: float) -> None:
        self._last, self.laps = started, list[float]()

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        now = time.perf_counter()
        self.laps.append(now - self._last)
        self._last = now
        return torch.zeros(len(input_ids), dtype=torch.bool)


def _table(sides: list[Side]) -> str:
    by = {side.engine: side for side in sides}
    ours = by["snapstream"]
    rows = [
        (
            side.engine,
            f"{side.entries:,}",
            f"{side.cache_bytes / 1e6:,.0f} MB",
            f"{side.prefill_s:.2f} s",
            f"{side.step_s * 1e3:.1f} ms",
            f"{side.tokens_per_s:.0f}",
            f"{ours.tokens_per_s / side.tokens_per_s:.2f}x",
            f"{side.prefill_s / by['full'].prefill_s:.3f}",
        )
        for side in sides
    ]
    head = ("engine", "entries per request", "cache", "prefill of one prompt", "decode step", "tokens/s, all")
    return table((*head, "snapstream is faster by", "prefill over full's"), rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:0")
    parser.add_argument("--policies", default="full,snapstream", help="of our engines; full and snapstream among them")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=7000)
    parser.add_argument("--budget", type=int, default=1792)
    parser.add_argument("--steps", type=int, default=64)
    return parser.parse_args()


if __name__ == "__main__":
    main()
