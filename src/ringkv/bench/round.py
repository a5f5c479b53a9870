"""Round: the times of one prompt that is prefilled, compressed, inserted into every slot and decoded.

The prompt is prefilled once and inserted into all slots. Each slot has its own copy, so a decode step moves as many
bytes as with different requests.
"""

import time
from dataclasses import dataclass
from random import Random

from ringkv.base.engine import Engine, prefill
from ringkv.base.kv import Layout
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams


@dataclass(frozen=True)
class Round:
    """Seconds, and the slots' layout."""

    prefill: float  # of one prompt, in chunks
    first_token: float  # prefill, compression, one insert and one sampling step
    steps: tuple[float, ...]  # forward pass and sampling, for all slots
    layout: Layout

    @property
    def live(self) -> float:
        """Entries that a slot's steps read, on average."""
        first, read = self.layout.prompt + 1, self.layout.read
        live = [self.layout.live(seen) for seen in range(first, first + len(self.steps))]
        return sum(min(entries, read) if read else entries for entries in live) / len(live)


def run_round(engine: Engine, prompt_tokens: int, output_tokens: int) -> Round:
    """Run a round. The first output token comes from the prompt's logits, so there is one step less than tokens."""
    tokens = tuple(Random(0).choices(range(engine.limits.vocab), k=prompt_tokens))  # the work does not depend on them
    request = Request("bench", tokens, SamplingParams(max_tokens=output_tokens, ignore_eos=True))
    engine.admit(request)
    started = time.perf_counter()
    prefill(engine, request)
    prefilled = time.perf_counter()
    layout = engine.compress(0, engine.default_kv)[0]
    engine.insert(0, 0, request)
    engine.sample().read()
    sampled = time.perf_counter()
    engine.release(0)
    steps = decode(engine, request, output_tokens - 1)
    return Round(prefilled - started, sampled - started, steps, layout)


def decode(engine: Engine, request: Request, steps: int) -> tuple[float, ...]:
    """Return the seconds of each step with the staged prompt in every slot. All slots are free afterwards."""
    slots = range(engine.limits.slots)
    for slot in slots:
        engine.insert(0, slot, request)
    engine.sample().read()
    seconds = tuple(step(engine) for _ in range(steps))
    for slot in slots:
        engine.release(slot)
    return seconds


def step(engine: Engine) -> float:
    """Return the seconds of a decode step: forward pass and sampling, for all slots."""
    started = time.perf_counter()
    engine.forward()
    engine.sample().read()
    return time.perf_counter() - started
