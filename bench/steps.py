"""steps: the time of an engine's decode steps."""

import time

from ringkv.engine.engine import LocalEngine


def step_seconds(engine: LocalEngine, count: int, warm: int) -> list[float]:
    """Return the seconds of each of `count` steps, a forward pass and a sample, without the first `warm`.

    The slots have requests. Their first tokens are sampled before the first step.
    """
    engine.sample().read()
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        engine.forward()
        engine.sample().read()
        taken.append(time.perf_counter() - began)
    return taken[warm:]
