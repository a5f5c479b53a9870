"""head_budgets: whole decode steps of heads that divide their slots unequally, beside equal ones of the same total.

    python -m bench.head_budgets --model smollm2 --tokens 8000
    python -m bench.head_budgets --model qwen2.5-coder-1.5b --tokens 16000

8 requests keep a quarter of so many tokens. Among the heads of a layer the shares fall evenly, from 1.8 times the mean
to a fifth of it, the least that a head gets. Entries are random. The two take turns, each in an engine of its own. Run
it on an idle machine.
"""

import argparse
import gc
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

import torch
from torch import Tensor

from bench.kv_steps import SLOTS, STEPS, WARM
from bench.results import keep, table
from bench.steps import step_seconds
from ringkv.base.kv import HeadBudgets
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.cache.body import Body
from ringkv.cache.compress.kept import EMPTY
from ringkv.cache.layouts import layouts
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.models.config import load_config
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.residency.locate import locate

KEPT = 4  # one of so many tokens is kept
LEAST = 0.2  # of the mean: the smallest share of a head


@dataclass(frozen=True)
class HeadFigure:
    heads: HeadBudgets
    kept: int
    slots_bytes: int
    seconds: float
    over_equal: float


def shares(heads: HeadBudgets, count: int, kept: int) -> list[int]:
    """Return the entries of each of `count` heads, `kept` on average."""
    if heads == "equal":
        return [kept] * count
    least = round(LEAST * kept)
    falling = torch.linspace(2 * kept - least, least, count).round().long().tolist()
    falling[0] += count * kept - sum(falling)
    return falling


def measured(model: str, heads: HeadBudgets, tokens: int, graphs: str | None = None) -> HeadFigure:
    """Build an engine, fill its slots and time its steps."""
    folder, kept = locate(model), tokens // KEPT
    options = Options(
        slots=SLOTS,
        kv_budget=kept,
        kv_heads=heads,
        prompt_tokens=tokens,
        output_tokens=STEPS + 1,
        prefix_store=0,
        lanes=1,
        graphs=graphs,
    )
    engine = build(resolve(folder, load_config(folder), options, available_bytes()))
    _fill(engine, shares(heads, engine.lanes.groups[0].spec.key.heads, kept), tokens)
    return HeadFigure(heads, kept, engine.limits.slots_bytes, median(step_seconds(engine, STEPS, WARM)), 1.0)


@torch.inference_mode()
def _fill(engine: LocalEngine, counts: Sequence[int], tokens: int) -> None:
    """Give every slot to a request whose heads have so many random entries each."""
    batch, (group,) = engine.batch, engine.lanes.groups
    staged = Body.allocate(group, 1, max(counts), torch.empty(0, dtype=torch.bfloat16).new_empty)
    for plane in staged.planes:
        plane.normal_()
    index = _index(counts).expand(len(group.layers), -1, -1)
    chosen = layouts(engine.default_kv, tokens, engine.limits.capacity, engine.lanes.groups)
    request = Request("filled", (0,) * tokens, SamplingParams(max_tokens=STEPS + 1, ignore_eos=True))
    for slot in range(engine.limits.slots):
        batch.bodies[0].take(slot, staged, 0, index)
        batch.place(slot, chosen, torch.zeros(engine.limits.vocab), request)


def _index(counts: Sequence[int]) -> Tensor:
    """Return int64 [H, n]: the first entries for each head, as many as it has."""
    every = torch.arange(max(counts)).expand(len(counts), -1)
    return torch.where(every < torch.tensor(counts)[:, None], every, EMPTY)


def main() -> None:
    args = _arguments()
    rounds: list[tuple[HeadFigure, HeadFigure]] = []
    for turn in range(args.rounds):
        equal = measured(args.model, "equal", args.tokens)
        gc.collect()
        divided = measured(args.model, "adaptive", args.tokens)
        gc.collect()
        rounds.append((equal, divided))
        print(f"round {turn + 1}: {1e3 * equal.seconds:.1f} ms, divided {1e3 * divided.seconds:.1f} ms", flush=True)
    figures = [_of_rounds([pair[place] for pair in rounds], [pair[0] for pair in rounds]) for place in range(2)]
    workload = {"model": args.model, "tokens": args.tokens, "slots": SLOTS, "kept": args.tokens // KEPT}
    keep("head_budgets", workload, [asdict(one) for one in figures], shown(figures))


def _of_rounds(own: Sequence[HeadFigure], equal: Sequence[HeadFigure]) -> HeadFigure:
    over = median(one.seconds / other.seconds for one, other in zip(own, equal, strict=True))
    return HeadFigure(own[0].heads, own[0].kept, own[0].slots_bytes, median(one.seconds for one in own), over)


def shown(figures: Sequence[HeadFigure]) -> str:
    head = ("heads", "entries per head", "bytes of slots", "step", "over equal")
    lines = [
        (one.heads, f"{one.kept:,}", f"{one.slots_bytes:,}", f"{1e3 * one.seconds:.1f} ms", f"{one.over_equal:.2f}x")
        for one in figures
    ]
    return table(head, lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
