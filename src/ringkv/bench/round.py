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
        return sum(live_entries(self.layout, len(self.steps))) / len(self.steps)


def run_round(engine: Engine, prompt_tokens: int, output_tokens: int) -> Round:
    """Run a round. The first output token comes from the prompt's logits, so there is one step less than tokens."""
    request = make_request(engine.limits.vocab, prompt_tokens, output_tokens)
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


def make_request(vocab: int, prompt_tokens: int, output_tokens: int) -> Request:
    """Return a request of random tokens, the same each time. The work does not depend on their values."""
    tokens = tuple(Random(0).choices(range(vocab), k=prompt_tokens))
    return Request("bench", tokens, SamplingParams(max_tokens=output_tokens, ignore_eos=True))


def decode(engine: Engine, request: Request, steps: int, lane: int = 0) -> tuple[float, ...]:
    """Return the seconds of each step with a lane's prompt in every slot. All slots are free afterwards."""
    slots = range(engine.limits.slots)
    for slot in slots:
        engine.insert(lane, slot, request)
    engine.sample().read()
    seconds = tuple(step(engine) for _ in range(steps))
    for slot in slots:
        engine.release(slot)
    return seconds


def live_entries(layout: Layout, steps: int) -> list[int]:
    """Return the entries that each of the first steps after the prompt reads in a slot."""
    live = (layout.live(seen) for seen in range(layout.prompt + 1, layout.prompt + 1 + steps))
    return [min(entries, layout.read) if layout.read else entries for entries in live]


def step(engine: Engine) -> float:
    """Return the seconds of a decode step: forward pass and sampling, for all slots."""
    started = time.perf_counter()
    engine.forward()
    engine.sample().read()
    return time.perf_counter() - started
