"""The bars about ourselves: the floor, memory over time, the first token, threads, a GPU."""

from collections.abc import Iterator
from dataclasses import replace

from bench.device.parts import planned
from bench.device.scale import REAL
from bench.flat import Flat
from bench.limits_tables import need
from bench.page.bar import Bar, mebibytes, milliseconds, percent, seconds, times
from bench.page.kept import Figure, Kept
from bench.page.models import SHOWN
from bench.page.peer_bars import memory_bar
from bench.page.seen import Limits

DRIFT = 16 << 20  # bytes over 900 requests that count as flat: an allocator's arena or two
SHIPPED = "as shipped"


def own_bars(kept: Kept, limits: Limits) -> list[Bar]:
    return [
        *_floors(kept, limits),
        *_growth(kept),
        *_memory(kept),
        memory_bar(kept),
        *_first_token(kept),
        *_device(kept),
        *_threads(kept),
        *_compression(kept),
        *_turns(kept),
        *_structured(kept),
    ]


def _floors(kept: Kept, limits: Limits) -> Iterator[Bar]:
    """Bar 4."""
    speeds = kept.figures("limits", "speed")
    decode = [one for one in speeds if one["what"] == "decode" and one["weights"] == "bfloat16"]
    prefill = [one for one in speeds if one["what"] == "prefill" and one["weights"] == "bfloat16"]
    shares = {_name(one, f"{one['slots']} slot" + "s" * (one["slots"] > 1)): _share(one, limits) for one in decode}
    yield Bar("4", "decode, of its floor", shares or {"": None}, 0.8, percent)
    shares = {_name(one, f"{one['prompt']:,} tokens"): _share(one, limits) for one in prefill}
    yield Bar("4", "prefill, of its floor", shares or {"": None}, 0.75, percent)


def _name(one: Figure, case: str) -> str:
    return f"{SHOWN.get(one['model'], one['model'])}, {case}"


def _share(one: Figure, limits: Limits) -> float | None:
    floor = limits.floor(need(one))
    return None if floor is None else floor / float(one["seconds"])


def _growth(kept: Kept) -> Iterator[Bar]:
    """Bar 4's second part: a step costs the same after any prompt at or over the budget."""
    growth = kept.figures("limits", "growth")
    by_model = {model: [one for one in growth if one["model"] == model] for model in SHOWN}
    read: dict[str, float | None] = {}
    slower: dict[str, float | None] = {}
    for model, ones in by_model.items():
        case = (
            f"{SHOWN[model]}, {min(o['prompt'] for o in ones):,} to {max(o['prompt'] for o in ones):,}" if ones else ""
        )
        case = case or SHOWN[model]
        read[case] = max(o["step_bytes"] for o in ones) - min(o["step_bytes"] for o in ones) if ones else None
        slower[case] = max(o["step_s"] for o in ones) / min(o["step_s"] for o in ones) - 1 if ones else None
    yield Bar(
        "4",
        "weights and live entries that a step reads, longest prompt minus shortest",
        read,
        0,
        lambda size: f"{size:,.0f}",
        at_most=True,
    )
    yield Bar("4", "a step's time, slowest prompt over fastest", slower, 0.1, percent, at_most=True)


def _memory(kept: Kept) -> Iterator[Bar]:
    """Bar 5."""
    figures = kept.figures("flat")
    found = Flat(**figures[0]) if figures else None
    what = "resident memory beyond weights, slots and staging"
    yield Bar("5", what, {"": found.remainder if found else None}, 700 << 20, mebibytes, at_most=True)
    what = "growth from the 100th request to the last"
    yield Bar("5", what, {"": found.drift if found else None}, DRIFT, mebibytes, at_most=True)


def _first_token(kept: Kept) -> Iterator[Bar]:
    """Bar 6."""
    figures = kept.figures("startup")
    taken = {"": next((one["first_s"] for one in figures if one["command"] == "ringkv generate"), None)}
    yield Bar("6", "`ringkv generate --model smollm2`, warm: first token after", taken, 4.0, seconds, at_most=True)


def _device(kept: Kept) -> Iterator[Bar]:
    """Bar 7."""
    decode = kept.figures("device", "decode")
    rates = [one["rate"] for kind in ("bandwidth", "kernel") for one in kept.figures("device", kind)]
    best = max(rates, default=0.0)
    cases = {_cache(one): one for one in decode}
    reached = {name: one["need_bytes"] / best / one["step_s"] for name, one in cases.items()} if best else {}
    yield Bar("7", "GPU, Llama-3.1-8B shapes: decode, of its floor", {**reached} or {"": None}, 0.85, percent)
    gains = {name: _of_the_plan(kept, one, best) for name, one in cases.items() if one["cache"] != "full"}
    yield Bar("7", "GPU: gain over a full cache, of what `ringkv plan` predicts", gains or {"": None}, 0.9, percent)


def _cache(one: Figure) -> str:
    return "full" if one["cache"] == "full" else f"{one['budget']:,}"


def _of_the_plan(kept: Kept, one: Figure, best: float) -> float | None:
    full = next((other for other in kept.figures("device", "decode") if other["cache"] == "full"), None)
    memory = kept.figures("device", "memory")
    if full is None or not memory:
        return None
    gain = (one["slots"] / one["step_s"]) / (full["slots"] / full["step_s"])
    rows = planned(replace(REAL, memory=memory[0]["free"]), one["budget"], int(best))
    predicted = [rows[name].tokens_per_second for name in (one["cache"], "full")]
    return gain / (predicted[0] / predicted[1]) if predicted[0] and predicted[1] else None


def _threads(kept: Kept) -> Iterator[Bar]:
    losses = {one["setting"]: one["loss"] for one in kept.figures("threads")}
    what = "served over HTTP, against the engine alone: loss"
    yield Bar("8", what, {"": losses.get(SHIPPED)}, 0.1, percent, at_most=True)


def _compression(kept: Kept) -> Iterator[Bar]:
    ones = kept.figures("limits", "compression")
    shares = {_name(one, f"{one['prompt']:,} tokens"): one["of_prefill"] for one in ones}
    yield Bar("8", "choosing what is kept, of prefill", shares or {"": None}, 0.02, percent, at_most=True)
    taken = {_name(one, f"{one['kept']:,} kept"): one["per_1k_s"] for one in ones}
    what = "compressing and inserting 1k kept tokens"
    yield Bar("8", what, taken or {"": None}, 0.005, milliseconds, at_most=True)


def _turns(kept: Kept) -> Iterator[Bar]:
    """Bar 9."""
    known = [one for one in kept.figures("turns") if one["sooner"] is not None]
    taken: dict[str, float | None] = {_name(one, f"{one['cache']}, {one['way']}"): one["sooner"] for one in known}
    yield Bar(
        "9", "the first token of a second turn: sooner than where nothing is known", taken or {"": None}, 10.0, times
    )


def _structured(kept: Kept) -> Iterator[Bar]:
    documents = next(iter(kept.figures("structured", "documents")), None)
    step = next(iter(kept.figures("structured", "step")), None)
    whole = documents["fits"] + documents["shortened"] if documents else 0
    fits = {"": whole / (whole + documents["WRONG"]) if documents else None}
    yield Bar(
        "10", "documents at temperature 1, of random schemas that were not refused: whole, and fit", fits, 1.0, percent
    )
    what = "a step of 8 requests with a grammar for one of them: longer than without"
    yield Bar("10", what, {"": step["more"] if step else None}, 0.2, percent, at_most=True)
