"""likelihood: llama.cpp's mean loss over windows of tokens, nats: MODEL THREADS, windows as JSON on standard input.

Prints a JSON list. Runs in llama.cpp's environment.
"""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.peers.workers.llama_cpp import LlamaCpp


def main() -> None:
    model, threads = sys.argv[1:]
    windows = json.load(sys.stdin)
    options = {"slots": 1, "length": max(map(len, windows)), "cache": "f16", "flash": True}
    options["threads"] = int(threads) or len(os.sched_getaffinity(0))
    engine = LlamaCpp(model, options, repack=False)  # what it computes does not depend on that
    print(json.dumps([loss(engine, window) for window in windows]))


def loss(engine: LlamaCpp, window: Sequence[int]) -> float:
    """Mean over all tokens but the first."""
    losses = [_loss(logits, token) for logits, token in zip(engine.logits(window), [*window[1:], None], strict=True)]
    return sum(losses) / (len(window) - 1)


def _loss(logits: Any, token: int | None) -> float:
    if token is None:  # nothing follows the last
        return 0.0
    most = float(logits.max())
    return most - float(logits[token]) + float(np.log(np.exp(logits - most, dtype=np.float64).sum()))


if __name__ == "__main__":
    main()
