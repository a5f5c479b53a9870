"""kv_steps: whole decode steps with slots in each format, and batches in equal cache bytes.

    python -m bench.kv_steps --model smollm2 --tokens 8000
    python -m bench.kv_steps --model qwen2.5-coder-1.5b --tokens 16000 --parts steps

steps: 8 requests with a full cache of so many tokens.
batches: 8 requests in plain slots that keep a quarter of the tokens, beside as many in int4 as the same bytes hold.
A step reads the weights and the live entries. `share` is its bytes per second over those of plain slots: 1 if a step
gets as much faster as it reads less. No chunk of zipcache fills up, so none is encoded. Entries are random. Formats
take turns, each in an engine of its own. Run it on an idle machine.
"""

import argparse
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import NamedTuple, get_args

import torch

from bench.results import keep, table
from bench.steps import step_seconds
from ringkv.base.cache_spec import LayerGroup, PlaneFormat
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.cache.body import Body
from ringkv.cache.layouts import layouts
from ringkv.cache.slot_bodies import allocate_slots
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.models.config import load_config
from ringkv.plan import floor
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.residency.locate import locate

SLOTS = 8
KEPT = 4  # batches keep one of so many tokens
STEPS, WARM = 24, 4
FORMATS: tuple[PlaneFormat, ...] = get_args(PlaneFormat)


class Case(NamedTuple):
    """Slots in a format, and the entries that each of them holds."""

    part: str
    format: PlaneFormat
    slots: int
    live: int
    skip: int | None = None  # layers at each end that are plain; None for the default


@dataclass(frozen=True)
class StepFigure:
    part: str
    format: PlaneFormat
    slots: int
    live: int
    slots_bytes: int
    step_bytes: float  # read by a step: weights and live entries
    seconds: float
    share: float  # of the bytes per second that plain slots are read with


def steps(live: int) -> Iterator[Case]:
    return (Case("steps", form, SLOTS, live) for form in FORMATS)


def batches(entry_bytes: Mapping[PlaneFormat, int], live: int) -> Iterator[Case]:
    """Yield plain slots, and as many int4 slots without plain layers as fit into their bytes."""
    kept = live // KEPT
    yield Case("batches", "plain", SLOTS, kept)
    yield Case("batches", "int4", SLOTS * entry_bytes["plain"] // entry_bytes["int4"], kept, skip=0)


def measured(model: str, case: Case) -> StepFigure:
    """Build an engine, fill its slots and time its steps."""
    folder = locate(model)
    config = load_config(folder)
    options = Options(
        slots=case.slots,
        kv_policy="full",
        prompt_tokens=case.live,
        output_tokens=STEPS + 1,
        prefix_store=0,
        lanes=1,
        kv_format=case.format,
        kv_format_skip=case.skip,
    )
    engine = build(resolve(folder, config, options, available_bytes()))
    fill(engine, case.live)
    seconds = median(step_seconds(engine, STEPS, WARM))
    need = floor.step(config, case.slots, case.live, engine.limits.entry_bytes)
    return StepFigure(*case[:4], engine.limits.slots_bytes, need.bytes, seconds, 1.0)


@torch.inference_mode()
def fill(engine: LocalEngine, live: int) -> None:
    """Give every slot to a request with `live` random entries, the same in all slots."""
    batch, groups = engine.batch, engine.lanes.groups
    for group, body in zip(groups, batch.bodies, strict=True):
        for layer in range(len(group.layers)):
            _fill_layer(group._replace(layers=(0,)), body, layer, live)
    chosen = layouts(engine.default_kv, live, engine.limits.capacity, groups)
    request = Request("filled", (0,) * live, SamplingParams(max_tokens=STEPS + 1, ignore_eos=True))
    for slot in range(engine.limits.slots):
        batch.place(slot, chosen, torch.zeros(engine.limits.vocab), request)


def _fill_layer(group: LayerGroup, body: Body, layer: int, live: int) -> None:
    like = torch.empty(0, dtype=torch.bfloat16)
    staged = Body.allocate(group, 1, live, like.new_empty)
    for plane in staged.planes:
        plane.normal_()
    index = torch.arange(live).expand(1, group.spec.key.heads, live)
    one = allocate_slots(body.group._replace(layers=(0,)), 1, body.entries, like.new_zeros)
    one.take(0, staged, 0, index, live, torch.rand(index.shape))
    for target, source in zip((*body.planes, *body.beside), (*one.planes, *one.beside), strict=True):
        target[layer] = source[0]


def of_cases(model: str, cases: Sequence[Case], rounds: int) -> list[StepFigure]:
    """Return a figure for each case: medians of rounds in which the cases take turns."""
    found: dict[Case, list[StepFigure]] = {case: [] for case in cases}
    for turn in range(rounds):
        for case in cases:
            found[case].append(measured(model, case))
            gc.collect()
            print(f"round {turn + 1}: {case.part} {case.format}: {1e3 * found[case][-1].seconds:.1f} ms", flush=True)
    return [_against(found[cases[0]], own) for own in found.values()]


def _against(plain: Sequence[StepFigure], own: Sequence[StepFigure]) -> StepFigure:
    """Return the figure of all rounds, with its bytes per second over those of plain slots."""
    before, after = (median(one.seconds for one in rounds) for rounds in (plain, own))
    share = (own[0].step_bytes / after) / (plain[0].step_bytes / before)
    return replace(own[0], seconds=after, share=share)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--parts", default="steps,batches")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    config = load_config(locate(args.model))
    sizes = {form: sum(g.stored_as(form).token_bytes(2) for g in config.groups) for form in FORMATS}
    parts: Mapping[str, Callable[[], Iterator[Case]]] = {
        "steps": lambda: steps(args.tokens),
        "batches": lambda: batches(sizes, args.tokens),
    }
    figures = [
        figure for part in args.parts.split(",") for figure in of_cases(args.model, list(parts[part]()), args.rounds)
    ]
    head = ("part", "slots in", "slots", "live", "bytes of slots", "bytes read", "step", "bytes/s over plain")
    lines = [
        (
            f.part,
            f.format,
            f"{f.slots}",
            f"{f.live:,}",
            f"{f.slots_bytes:,}",
            f"{f.step_bytes / 1e9:.2f} GB",
            f"{1e3 * f.seconds:.1f} ms",
            f"{f.share:.0%}",
        )
        for f in figures
    ]
    keep("kv_steps", {"model": args.model, "tokens": args.tokens}, [asdict(f) for f in figures], table(head, lines))


if __name__ == "__main__":
    main()
