"""likelihood: llama.cpp's mean loss over windows of tokens, in nats. Arguments: MODEL THREADS.

It reads the windows as JSON from standard input and prints a JSON list. It runs in llama.cpp's environment.
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
    engine = LlamaCpp(model, options, repack=False)  # repacking does not change the results
    print(json.dumps([loss(engine, window) for window in windows]))


def loss(engine: LlamaCpp, window: Sequence[int]) -> float:
    """Return the mean loss over all tokens except the first."""
    losses = [_loss(logits, token) for logits, token in zip(engine.logits(window), [*window[1:], None], strict=True)]
    return sum(losses) / (len(window) - 1)


def _loss(logits: Any, token: int | None) -> float:
    if token is None:  # nothing follows the last
        return 0.0
    largest = float(logits.max())
    return largest - float(logits[token]) + float(np.log(np.exp(logits - largest, dtype=np.float64).sum()))


if __name__ == "__main__":
    main()
