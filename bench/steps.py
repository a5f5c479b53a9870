"""steps: the time of an engine's decode steps."""

import time
from collections.abc import Callable

from ringkv.engine.engine import LocalEngine


def step_seconds(
    engine: LocalEngine, count: int, warm: int, before: Callable[[], object] = lambda: None
) -> list[float]:
    """Return the seconds of each of `count` steps, a forward pass and a sample, without the first `warm`.

    The slots have requests. Their first tokens are sampled before the first step. before: called before each step.
    """
    engine.sample().read()
    taken = []
    for _ in range(count):
        before()
        began = time.perf_counter()
        engine.forward()
        engine.sample().read()
        taken.append(time.perf_counter() - began)
    return taken[warm:]
