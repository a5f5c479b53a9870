"""packing: which chunks of the staged prompts share a pass."""

from collections.abc import Sequence

from ringkv.base.engine import PrefillChunk
from ringkv.scheduler.job import PendingPrompt


def pack(prompts: Sequence[PendingPrompt], rows: int, unit: int) -> list[PrefillChunk]:
    """Return chunks of at most `rows` tokens together, one for each prompt at most, in the order of the prompts.

    Each prompt gets an equal share, so a short one does not wait for a long one. What is left goes to the first ones.
    Chunks end at places in their lane that are multiples of `unit`, or at their prompt's end. Only the first prompt's
    may be longer than `rows`: it has at least one unit.
    """
    share = max(unit, rows // max(1, len(prompts)))
    stops: dict[int, int] = {}
    left = rows
    for size in (share, rows):
        for place, prompt in enumerate(prompts):
            start = stops.get(place, prompt.prefilled)
            stop = _cut(prompt, start, min(size, left), unit)
            if stop > start:
                stops[place] = stop
                left -= stop - start
    if not stops and prompts:
        stops[0] = _cut(prompts[0], prompts[0].prefilled, unit, unit)
    return [prompts[place].chunk(stop) for place, stop in sorted(stops.items())]


def _cut(prompt: PendingPrompt, start: int, tokens: int, unit: int) -> int:
    """Return where a chunk of at most so many tokens ends."""
    end, stop, gap = prompt.length, start + tokens, prompt.gap
    return end if stop >= end else max(start, (stop - gap) // unit * unit + gap)
