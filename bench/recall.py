"""recall: whole decode steps that read some pages of all entries, beside steps over as many entries that were kept.

    python -m bench.recall --model smollm2 --tokens 8000 --page 16
    python -m bench.recall --model qwen2.5-coder-1.5b --tokens 16000 --tier /var/tmp

8 requests of so many tokens, a quarter of which a step reads. `full` reads all of them, `snapstream` has evicted the
others. `arkvale` selects pages, and runs a second time with the pages that it does not read estimated. With --tier, it
runs with its entries in files of that directory, which the operating system has in its cache, as after a prompt; then
also cold: at least 80% of them are dropped from memory before each step. Both run again with pages prefetched one layer
ahead: `hits` is the share of prefetched pages that the step then read, among them those that every step reads. Entries
are random. Policies take turns, each in an engine of its own. Run it on an idle machine.
"""

import argparse
import gc
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import NamedTuple

from bench.kv_steps import SLOTS, STEPS, WARM, fill
from bench.page_out import page_out_slots
from bench.results import keep, table
from bench.steps import step_seconds
from ringkv.base.kv import PAGES, Unread
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.models.config import load_config
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.residency.locate import locate

READ = 4  # a step reads one of so many tokens
COLD_STEPS = 4


class Case(NamedTuple):
    """A policy, the entries of its slots, where they are, and what becomes of pages that are not read."""

    policy: str
    live: int
    tier: str = "memory"
    unread: Unread = "drop"
    is_cold: bool = False
    prefetch: bool = False


@dataclass(frozen=True)
class RecallFigure:
    policy: str
    live: int
    tier: str
    slots_bytes: int  # in memory
    seconds: float
    over_kept: float  # the step over snapstream's
    unread: Unread = "drop"
    prefetch: bool = False
    hits: float = 0.0  # the share of prefetched pages that the step read


def cases(tokens: int, tier: str | None) -> Iterator[Case]:
    yield Case("snapstream", tokens // READ)
    yield Case("arkvale", tokens)
    yield Case("arkvale", tokens, unread="estimate")
    if tier:
        for prefetch in (False, True):
            yield Case("arkvale", tokens, tier, prefetch=prefetch)
            yield Case("arkvale", tokens, tier, is_cold=True, prefetch=prefetch)
    yield Case("full", tokens)


def measured(model: str, case: Case, tokens: int, graphs: str | None = None, page: int | None = None) -> RecallFigure:
    """Build an engine, fill its slots and time its steps."""
    folder = locate(model)
    options = Options(
        slots=SLOTS,
        kv_policy=case.policy,
        kv_budget=None if case.policy == "full" else tokens // READ,
        kv_tier=case.tier if case.policy == "arkvale" else None,
        kv_page=page if case.policy == "arkvale" else None,
        kv_unread=case.unread if case.policy == "arkvale" else None,
        kv_prefetch=case.prefetch or None,
        prompt_tokens=case.live,
        output_tokens=STEPS + 1,
        prefix_store=0,
        lanes=1,
        graphs=graphs,
    )
    engine = build(resolve(folder, load_config(folder), options, available_bytes()))
    fill(engine, case.live)
    tier = "memory" if case.tier == "memory" else "file, cold" if case.is_cold else "file"
    seconds = median(_cold_steps(engine) if case.is_cold else step_seconds(engine, STEPS, WARM))
    own = case.unread, case.prefetch, _hits(engine)
    return RecallFigure(case.policy, case.live, tier, engine.limits.slots_bytes, seconds, 1, *own)


def _hits(engine: LocalEngine) -> float:
    fetched = engine.fetched(0)
    return fetched.prefetch_hits / fetched.prefetched if fetched and fetched.prefetched else 0.0


def _cold_steps(engine: LocalEngine) -> list[float]:
    return step_seconds(engine, COLD_STEPS, 0, partial(page_out_slots, engine))


def main() -> None:
    args = _arguments()
    every = list(cases(args.tokens, args.tier))
    found: dict[Case, list[RecallFigure]] = {case: [] for case in every}
    for turn in range(args.rounds):
        for case in every:
            found[case].append(measured(args.model, case, args.tokens, page=args.page))
            gc.collect()
            one = found[case][-1]
            text = f"{case.policy}, {one.tier}, {case.unread}, prefetch {_fetching(one)}"
            print(f"round {turn + 1}: {text}: {1e3 * one.seconds:.1f} ms", flush=True)
    kept = [one.seconds for one in found[every[0]]]
    figures = [_over(kept, rounds) for rounds in found.values()]
    workload = {
        "model": args.model,
        "tokens": args.tokens,
        "slots": SLOTS,
        "read": args.tokens // READ,
        "page": args.page,
    }
    keep("recall", workload, [asdict(one) for one in figures], shown(figures))


def _over(kept: Sequence[float], rounds: Sequence[RecallFigure]) -> RecallFigure:
    """Return the figure of all rounds, with its step over that of entries that were kept."""
    over = median(one.seconds / of_kept for one, of_kept in zip(rounds, kept, strict=True))
    return replace(rounds[0], seconds=median(one.seconds for one in rounds), over_kept=over)


def shown(figures: Sequence[RecallFigure]) -> str:
    head = "policy", "entries", "in", "unread pages", "prefetch", "bytes in memory", "step", "over snapstream"
    lines = [
        (
            one.policy,
            f"{one.live:,}",
            one.tier,
            one.unread if one.policy == "arkvale" else "",
            _fetching(one),
            f"{one.slots_bytes:,}",
            f"{1e3 * one.seconds:.1f} ms",
            f"{one.over_kept:.2f}x",
        )
        for one in figures
    ]
    return table(head, lines)


def _fetching(one: RecallFigure) -> str:
    return "off" if not one.prefetch else f"hits {one.hits:.0%}" if one.hits else "on"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--tier", metavar="DIR", help="a directory of a local disk")
    parser.add_argument("--page", type=int, choices=PAGES, default=PAGES[0], help="entries of a page")
    parser.add_argument("--rounds", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
