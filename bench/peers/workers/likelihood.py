"""likelihood: an engine's mean loss over windows of tokens, in nats.

The windows are read as JSON from standard input; a JSON list is printed. It runs in a peer's environment.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np


class Predictor(Protocol):
    def logits(self, tokens: Sequence[int]) -> Iterator[Any]:
        """Yield the logits after each token, float32 [vocab]."""


def main(load: Callable[[str, int, int], Predictor]) -> None:
    """Score the windows with the engine of the command line: MODEL THREADS. load: model, longest window, threads."""
    model, threads = sys.argv[1:]
    windows = json.load(sys.stdin)
    engine = load(model, max(map(len, windows)), int(threads) or len(os.sched_getaffinity(0)))
    print(json.dumps([loss(engine, window) for window in windows]))


def loss(engine: Predictor, window: Sequence[int]) -> float:
    """Return the mean loss over all tokens except the first."""
    losses = [_loss(logits, token) for logits, token in zip(engine.logits(window), [*window[1:], None], strict=True)]
    return sum(losses) / (len(window) - 1)


def _loss(logits: Any, token: int | None) -> float:
    if token is None:  # nothing follows the last
        return 0.0
    largest = float(logits.max())
    return largest - float(logits[token]) + float(np.log(np.exp(logits - largest, dtype=np.float64).sum()))
