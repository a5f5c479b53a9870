"""packing: which chunks of the staged prompts share a pass."""

from collections.abc import Sequence

from ringkv.base.engine import PrefillChunk
from ringkv.scheduler.job import PendingPrompt

OLDEST_EVERY = 4  # passes


def in_order(prompts: Sequence[PendingPrompt], number: int) -> list[PendingPrompt]:
    """Return prompts in the order in which they get rows of pass `number`: the one with the fewest tokens left first.

    So most requests get their first token soon, and a short prompt does not wait for a long one. In every fourth pass
    the oldest is first, so that it gets on whatever arrives.
    """
    order = sorted(prompts, key=lambda prompt: (prompt.left, prompt.arrival))
    if number % OLDEST_EVERY == 0:
        oldest = min(prompts, key=lambda prompt: prompt.arrival)
        order.sort(key=lambda prompt: prompt is not oldest)
    return order


def pack(prompts: Sequence[PendingPrompt], rows: int, unit: int) -> list[PrefillChunk]:
    """Return chunks of at most `rows` tokens together: as much of each prompt as fits, in their order.

    Chunks end at places in their lane that are multiples of `unit`, where the lane is compacted, or at their prompt's
    end. Only the first prompt's may be longer than `rows`: it has at least one unit.
    """
    chunks, left = list[PrefillChunk](), rows
    for prompt in prompts:
        stop = _cut(prompt, left, unit)
        if stop > prompt.prefilled:
            chunks.append(prompt.chunk(stop))
            left -= stop - prompt.prefilled
    return chunks or [prompt.chunk(_cut(prompt, unit, unit)) for prompt in prompts[:1]]


def _cut(prompt: PendingPrompt, tokens: int, unit: int) -> int:
    """Return where a prompt's next chunk of at most so many tokens ends."""
    stop, gap, furthest = prompt.prefilled + tokens, prompt.gap, prompt.furthest
    return furthest if stop >= furthest else max(prompt.prefilled, (stop - gap) // unit * unit + gap)
