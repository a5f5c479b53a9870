"""likelihood: an engine's mean loss over windows of tokens, in nats.

    python -m bench.peers.workers.likelihood ENGINE MODEL THREADS

The windows are read as JSON from standard input; a JSON list is printed. It runs in the engine's environment.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Logits = Callable[[Sequence[int]], Iterator[Any]]
"""Yields the logits after each token, float32 [vocab]."""


def llama_cpp(model: str, length: int, threads: int) -> Logits:
    from bench.peers.workers.llama_cpp import LlamaCpp

    options = {"slots": 1, "length": length, "cache": "f16", "flash": True, "threads": threads}
    return LlamaCpp(model, options, repack=False).logits  # repacking does not change the results


def openvino(model: str, length: int, threads: int) -> Logits:
    """Run the exported model itself, as a pipeline of OpenVINO GenAI returns no logits."""
    import openvino  # type: ignore[import-not-found]

    properties = {"INFERENCE_NUM_THREADS": threads, "KV_CACHE_PRECISION": "bf16"}
    compiled = openvino.Core().compile_model(Path(model) / "openvino_model.xml", "CPU", properties)
    request = compiled.create_infer_request()

    def logits(tokens: Sequence[int]) -> Iterator[Any]:
        request.reset_state()
        ids = np.array([tokens], dtype=np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "beam_idx": np.zeros(1, dtype=np.int32)}
        outputs = request.infer(inputs | {"position_ids": np.arange(len(tokens), dtype=np.int64)[None]})
        yield from outputs["logits"][0]

    return logits


ENGINES: Mapping[str, Callable[[str, int, int], Logits]] = {"llama.cpp": llama_cpp, "openvino": openvino}


def loss(logits: Logits, window: Sequence[int]) -> float:
    """Return the mean loss over all tokens except the first."""
    losses = [_loss(each, token) for each, token in zip(logits(window), [*window[1:], None], strict=True)]
    return sum(losses) / (len(window) - 1)


def _loss(logits: Any, token: int | None) -> float:
    if token is None:  # nothing follows the last
        return 0.0
    largest = float(logits.max())
    return largest - float(logits[token]) + float(np.log(np.exp(logits - largest, dtype=np.float64).sum()))


def main() -> None:
    engine, model, threads = sys.argv[1:]
    windows = json.load(sys.stdin)
    logits = ENGINES[engine](model, max(map(len, windows)), int(threads) or len(os.sched_getaffinity(0)))
    print(json.dumps([loss(logits, window) for window in windows]))


if __name__ == "__main__":
    main()
