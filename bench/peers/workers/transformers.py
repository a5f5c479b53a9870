"""transformers: the loop of `generate` with its defaults, on a batch of prompts of one length.

Options: "threads".
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import transformers

from bench.peers.workers.serve import serve


class Transformers:
    def __init__(self, model: str, options: Mapping[str, Any]) -> None:
        torch.set_num_threads(options["threads"])
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        self._model = loaded.eval()
        self._cache: Any = None
        self._next = torch.empty(0, 1, dtype=torch.int64)
        self._requests: list[int] = []

    def submit(self, prompts: list[list[int]]) -> None:
        self._cache = transformers.DynamicCache(config=self._model.config)
        self._next = torch.tensor(prompts)
        self._requests = list(range(len(prompts)))

    @torch.inference_mode()
    def step(self) -> Iterable[tuple[int, int]]:
        out = self._model(input_ids=self._next, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        self._next = out.logits[:, -1].argmax(-1, keepdim=True)
        return list(zip(self._requests, self._next[:, 0].tolist(), strict=True))

    @torch.inference_mode()
    def drop(self, requests: Iterable[int]) -> None:
        dropped = set(requests)
        rows = [row for row, request in enumerate(self._requests) if request not in dropped]
        self._requests = [self._requests[row] for row in rows]
        if rows:
            self._cache.batch_select_indices(torch.tensor(rows))
            self._next = self._next[rows]
        else:
            self._cache = None

    def facts(self) -> Mapping[str, Any]:
        return {"version": transformers.__version__, "torch": torch.__version__, "threads": torch.get_num_threads()}


if __name__ == "__main__":
    serve(Transformers)
