"""kv_format: speed and perplexity of slots in fewer bits beside bfloat16 slots.

    python -m bench.kv_format [--model smollm2] [--steps 512] [--dry]

speed: decode attention of one layer of the model with 8 slots of 7,000 live entries, all formats alternating.
perplexity: 8 texts of WikiText-2. The first 512 tokens of each are the prompt; the others are forced while decoding, so
that the decode path scores them. Nothing is evicted. Run it on an idle machine.
"""

import argparse
import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import get_args

import torch

from bench.data import DATA
from bench.kernels import load_kernels
from bench.results import keep, table
from ringkv.base.cache_spec import SKIPPED, LayerGroup, PlaneFormat, SlotFormat
from ringkv.base.events import Failed, Token
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.cache.body import Body
from ringkv.cache.formats.registry import FORMATS
from ringkv.cache.slot_bodies import allocate_slots
from ringkv.engine.build import build
from ringkv.models.config import ModelConfig, load_config
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.residency.locate import locate
from ringkv.scheduler.loop import Loop
from ringkv.text.tokenizer import Tokenizer

SLOTS, LIVE, TURNS = 8, 7000, 25
LAYERS = 8  # enough that their entries exceed the processor's caches
PROMPT = 512
Figures = Mapping[PlaneFormat, Mapping[str, float]]
SHOWN = {"attend_s": "{:.5f} s", "attend_ratio": "{:.2f}", "perplexity": "{:.4f}", "more": "{:+.3%}"}
FORMATS_COMPARED: tuple[PlaneFormat, ...] = get_args(PlaneFormat)


def attention(group: LayerGroup) -> dict[PlaneFormat, float]:
    """Return the seconds of a layer's decode attention in each format."""
    load_kernels()
    layers = group._replace(layers=tuple(range(LAYERS)))
    like = torch.empty(0, dtype=torch.bfloat16)
    staged = Body.allocate(layers, 1, LIVE, like.new_empty)
    for plane in staged.planes:
        plane.normal_()
    index = torch.arange(LIVE).expand(LAYERS, group.spec.key.heads, LIVE)
    runs = {}
    for form in FORMATS_COMPARED:
        slots = allocate_slots(layers.stored_as(form), SLOTS, LIVE, like.new_zeros)
        for slot in range(SLOTS):
            slots.take(slot, staged, 0, index, LIVE, torch.rand(index.shape))
        runs[form] = _attend(slots, form)
    times: dict[PlaneFormat, list[float]] = {form: [] for form in FORMATS_COMPARED}
    for _ in range(TURNS):
        for form, run in runs.items():
            started = time.perf_counter()
            run()
            times[form].append((time.perf_counter() - started) / LAYERS)
    return {form: median(each) for form, each in times.items()}


def _attend(slots: Body, form: PlaneFormat) -> Callable[[], None]:
    spec = slots.group.spec
    q = torch.randn(SLOTS, spec.key.heads, slots.group.queries, spec.key.width, dtype=torch.bfloat16)
    k, v = (torch.randn(SLOTS, spec.key.heads, spec.key.width, dtype=torch.bfloat16) for _ in range(2))
    slot = torch.arange(SLOTS, dtype=torch.int32)
    entry, live = torch.full_like(slot, LIVE - 1), torch.full_like(slot, LIVE)

    def run() -> None:
        for layer in range(LAYERS):
            FORMATS[form].attend(q, k, v, *slots.layer(layer), slot, entry, live, spec.scale)

    return run


def perplexity(model: str, form: PlaneFormat, texts: Sequence[tuple[int, ...]]) -> float:
    """Return the perplexity of each text's tokens after its prompt."""
    folder, longest = locate(model), len(texts[0])
    options = Options(
        slots=SLOTS,
        kv_policy="full",
        prompt_tokens=PROMPT,
        output_tokens=longest,
        prefix_store=0,
        kv_format=form,
        graphs="off",  # compiling takes longer than the tokens
    )
    loop = Loop(build(resolve(folder, load_config(folder), options, available_bytes())))
    sampling = SamplingParams(max_tokens=longest - PROMPT, logprobs=0, ignore_eos=True)
    for name, tokens in enumerate(texts):
        loop.submit(Request(f"{name}", tokens[:PROMPT], sampling, forced=tokens[PROMPT:]))
    found = []
    while not loop.idle:
        for event in loop.step():
            assert not isinstance(event, Failed), event
            if isinstance(event, Token):
                assert event.logprob is not None
                found.append(event.logprob.logprob)
    assert len(found) == len(texts) * (longest - PROMPT)
    return math.exp(-sum(found) / len(found))


def of_speed(seconds: Mapping[PlaneFormat, float]) -> Figures:
    return {form: {"attend_s": one, "attend_ratio": seconds["plain"] / one} for form, one in seconds.items()}


def of_perplexity(scores: Mapping[PlaneFormat, float]) -> Figures:
    return {form: {"perplexity": one, "more": one / scores["plain"] - 1} for form, one in scores.items()}


def entry_bytes(config: ModelConfig, form: PlaneFormat) -> int:
    """Return the bytes of an entry, all layers; the first and last ones are plain as by default.

    One of zipcache is in a chunk; the newest ones are plain, and not counted.
    """
    groups = config.with_slots(SlotFormat(form, SKIPPED[form])).groups
    return sum(group.in_slots.token_bytes(2) for group in groups)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--parts", default="speed,perplexity")
    parser.add_argument("--dry", action="store_true", help="print the table, do not append it")
    args = parser.parse_args()
    folder = locate(args.model)
    config = load_config(folder)
    (group, *_) = config.groups
    ids = Tokenizer.from_directory(folder).encode((DATA / "text" / "wikitext-2_test.txt").read_text()[:200_000])
    size = PROMPT + args.steps
    texts = [tuple(ids[at * size : (at + 1) * size]) for at in range(SLOTS)]
    parts: dict[str, Callable[[], Figures]] = {
        "speed": lambda: of_speed(attention(group)),
        "perplexity": lambda: of_perplexity({form: perplexity(args.model, form, texts) for form in FORMATS_COMPARED}),
    }
    found = [parts[part]() for part in args.parts.split(",")]
    figures = [
        {"format": form, "entry_bytes": entry_bytes(config, form)}
        | {k: v for one in found for k, v in one[form].items()}
        for form in FORMATS_COMPARED
    ]
    head = ["slots in", "bytes per entry", *(name for name in SHOWN if name in figures[0])]
    lines = [
        [f["format"], f"{f['entry_bytes']:,}", *(show.format(f[name]) for name, show in SHOWN.items() if name in f)]
        for f in figures
    ]
    if args.dry:
        print(table(head, lines))
        return
    workload = {"model": args.model, "slots": SLOTS, "live": LIVE, "tokens": SLOTS * args.steps}
    keep("kv_format", workload, figures, table(head, lines))


if __name__ == "__main__":
    main()
