"""openvino_likelihood: OpenVINO's loss, with the device properties of the prefill benchmark.

A pipeline of OpenVINO GenAI returns no logits, so the exported model is run itself.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found]

from bench.peers.workers.likelihood import main


class Exported:
    def __init__(self, model: str, threads: int) -> None:
        properties = {"INFERENCE_NUM_THREADS": threads, "KV_CACHE_PRECISION": "bf16"}
        compiled = openvino.Core().compile_model(Path(model) / "openvino_model.xml", "CPU", properties)
        self._request = compiled.create_infer_request()

    def logits(self, tokens: Sequence[int]) -> Iterator[Any]:
        self._request.reset_state()
        ids = np.array([tokens], dtype=np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "beam_idx": np.zeros(1, dtype=np.int32)}
        positions = np.arange(len(tokens), dtype=np.int64)[None]
        outputs = self._request.infer(inputs | {"position_ids": positions})
        yield from outputs["logits"][0]


def load(model: str, length: int, threads: int) -> Exported:
    return Exported(model, threads)


if __name__ == "__main__":
    main(load)
