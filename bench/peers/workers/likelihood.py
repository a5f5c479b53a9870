"""likelihood: llama.cpp's mean loss over windows of tokens, nats: MODEL THREADS, windows as JSON on standard input.

Prints a JSON list. Runs in llama.cpp's environment.
"""

import ctypes
import json
import os
import sys
from collections.abc import Sequence

import llama_cpp  # type: ignore[import-not-found]
import numpy as np

from bench.peers.workers.llama_cpp import BATCH, LlamaCpp


def main() -> None:
    model, threads = sys.argv[1:]
    windows = json.load(sys.stdin)
    options = {"slots": 1, "length": max(map(len, windows)), "cache": "f16", "flash": True}
    options["threads"] = int(threads) or len(os.sched_getaffinity(0))
    engine = LlamaCpp(model, options, repack=False)  # what it computes does not depend on that
    print(json.dumps([loss(engine, window) for window in windows]))


def loss(engine: LlamaCpp, window: Sequence[int]) -> float:
    """Mean over all tokens but the first."""
    total = 0.0
    for start in range(0, len(window), BATCH):
        piece = window[start : start + BATCH]
        engine._run([(token, start + place, 0) for place, token in enumerate(piece)], every=True)
        following = window[start + 1 : start + BATCH + 1]
        total -= sum(_log_probability(engine, row, token) for row, token in enumerate(following))
    engine.drop([0])
    return total / (len(window) - 1)


def _log_probability(engine: LlamaCpp, row: int, token: int) -> float:
    at = llama_cpp.llama_get_logits_ith(engine._context, row)
    logits = np.ctypeslib.as_array(ctypes.cast(at, ctypes.POINTER(ctypes.c_float)), (engine._vocab,))
    most = float(logits.max())
    return float(logits[token]) - most - float(np.log(np.exp(logits - most, dtype=np.float64).sum()))


if __name__ == "__main__":
    main()
