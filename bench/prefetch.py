"""prefetch: what one request prefetches from files that are not in memory, and how much of it is read.

    python -m bench.prefetch --model smollm2 --tier /var/tmp
    python -m bench.prefetch --model qwen2.5-coder-1.5b --tier /var/tmp

A request with a text of 8k tokens is answered with `arkvale`, an eighth of it read in a step. Its pages are dropped
from memory before the first step. The counts are those of its `usage.kv.pages`, a mean over layers and heads. Of the
pages that layers selected and that were missing from memory, a share was prefetched.
"""

import argparse
from collections.abc import Mapping
from typing import Any

from bench.data import DATA
from bench.page_out import page_out_slots
from bench.results import keep, table
from bench.selections import SEED, TASKS
from ringkv.base.engine import prefill
from ringkv.base.events import FetchedPages
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.evaluation.prompt import PromptBuilder
from ringkv.evaluation.tasks.catalogue import select_tasks
from ringkv.evaluation.tasks.source import Source
from ringkv.models.config import load_config
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.residency.locate import locate


def answered(engine: LocalEngine, prompt: tuple[int, ...], tokens: int) -> FetchedPages:
    """Answer a prompt in slot 0, whose pages are dropped from memory before the first step."""
    request = Request("request", prompt, SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True))
    prefill(engine, request)
    engine.insert(0, 0, request)
    page_out_slots(engine)
    for _ in range(tokens - 1):
        engine.sample().read()
        engine.forward()
    fetched = engine.fetched(0)
    assert fetched is not None
    engine.release(0)
    return fetched


def figure(task: str, pages: FetchedPages) -> dict[str, Any]:
    missing = pages.recalled + pages.prefetch_hits
    return {
        "task": task,
        "recalled_pages": pages.recalled,
        "prefetched_pages": pages.prefetched,
        "hits": pages.prefetch_hits / max(1, pages.prefetched),
        "found": pages.prefetch_hits / max(1, missing),
    }


def cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    counts = (str(one[name]) for name in ("prefetched_pages", "recalled_pages"))
    return (str(one["task"]), *counts, f"{one['hits']:.0%}", f"{one['found']:.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tier", metavar="DIR", required=True, help="a directory of a local disk")
    parser.add_argument("--tokens", type=int, default=8000, help="of a prompt, at most")
    parser.add_argument("--steps", type=int, default=32, help="of an answer")
    args = parser.parse_args()
    folder = locate(args.model)
    options = Options(
        slots=1,
        kv_policy="arkvale",
        kv_budget=args.tokens // 8,
        kv_tier=args.tier,
        kv_prefetch=True,
        prompt_tokens=args.tokens,
        output_tokens=args.steps,
        prefix_store=0,
        lanes=1,
    )
    engine = build(resolve(folder, load_config(folder), options, available_bytes()))
    builder = PromptBuilder(folder, args.tokens, args.tokens + args.steps)
    source = Source((args.tokens,), 1, SEED, DATA, builder.count_tokens)
    figures = []
    for task in select_tasks(TASKS):
        prompt = builder.make(next(iter(task.samples(source))), "inside").whole
        figures.append(figure(task.name, answered(engine, tuple(prompt), args.steps)))
    head = ("task", "prefetched", "recalled", "prefetched pages that were read", "missing pages that were prefetched")
    keep("prefetch", {"model": args.model, "tokens": args.tokens}, figures, table(head, [*map(cells, figures)]))


if __name__ == "__main__":
    main()
