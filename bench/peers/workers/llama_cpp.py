"""llama.cpp: its batch interface, with a key-value stream per request.

Prompts run one after another, then all requests decode together, so no step mixes the two.
Options: "slots", "length" (prompt and output of one request, in tokens), "threads", "cache" (a name
of CACHE_TYPES), "flash" (fused attention), "check_repack".
"""

import ctypes
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import llama_cpp  # type: ignore[import-not-found]
import numpy as np

from bench.peers.workers.serve import serve

BATCH = 512  # tokens per call; llama.cpp's default micro-batch
CACHE_TYPES = {"f16": 1, "q8_0": 8, "bf16": 30}  # ggml's type ids
FUSED = {False: 0, True: 1}
ROUND = 256  # each stream's number of cells is a multiple of this
CHECKED = 64  # prompt tokens of the repacking check


def load(model: str, options: Mapping[str, Any]) -> "LlamaCpp":
    """Load with weights repacked for this processor, llama.cpp's default, unless "check_repack" finds a crash."""
    return LlamaCpp(model, options, repack=not options["check_repack"] or _survives(model, options))


def _survives(model: str, options: Mapping[str, Any]) -> bool:
    """Return whether repacked weights work, checked in a child process: they crash on some machines with AMX."""
    if child := os.fork():
        return os.waitpid(child, 0)[1] == 0
    engine = LlamaCpp(model, {**options, "slots": 1, "length": ROUND}, repack=True)
    engine.submit([[1] * CHECKED])
    engine.step()
    engine.step()
    os._exit(0)


class LlamaCpp:
    def __init__(self, model: str, options: Mapping[str, Any], repack: bool) -> None:
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = self._repack = repack
        self._model = llama_cpp.llama_model_load_from_file(model.encode(), params)
        if not self._model:
            raise RuntimeError(f"{model} could not be loaded")
        self._context = _context(self._model, options)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(max(BATCH, options["slots"]), 0, 1)
        self._waiting: list[tuple[int, list[int]]] = []
        self._running: dict[int, tuple[int, int]] = {}  # request -> its next token, and that token's position

    def submit(self, prompts: list[list[int]]) -> None:
        self._waiting = list(enumerate(prompts))

    def step(self) -> Iterable[tuple[int, int]]:
        return [self._prefill(*self._waiting.pop(0))] if self._waiting else self._decode()

    def drop(self, requests: Iterable[int]) -> None:
        for request in requests:
            llama_cpp.llama_memory_seq_rm(self._memory, request, -1, -1)
            self._running.pop(request, None)

    def logits(self, tokens: Sequence[int]) -> Iterator[Any]:
        """Yield the logits after each token, float32 [vocabulary], overwritten by the next. Drops request 0 at last."""
        for size in self._batches(0, tokens, every=True):
            yield from map(self._row, range(size))
        self.drop([0])

    def facts(self) -> Mapping[str, Any]:
        system = llama_cpp.llama_print_system_info().decode()
        return {"version": llama_cpp.__version__, "repack": self._repack, "system": system}

    def _prefill(self, request: int, tokens: list[int]) -> tuple[int, int]:
        *_, size = self._batches(request, tokens, every=False)
        return self._sampled(request, size - 1, len(tokens))

    def _batches(self, request: int, tokens: Sequence[int], every: bool) -> Iterator[int]:
        """Run a prompt in batches and yield the rows of each after it has run."""
        for start in range(0, len(tokens), BATCH):
            batch = tokens[start : start + BATCH]
            self._run([(token, start + place, request) for place, token in enumerate(batch)], every)
            yield len(batch)

    def _decode(self) -> list[tuple[int, int]]:
        rows = [(token, position, request) for request, (token, position) in self._running.items()]
        self._run(rows, every=True)
        return [self._sampled(request, row, position + 1) for row, (_, position, request) in enumerate(rows)]

    def _run(self, rows: Sequence[tuple[int, int, int]], every: bool) -> None:
        """Run rows of (token, position, request); compute logits of every row, or of the last."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for row, (token, position, request) in enumerate(rows):
            batch.token[row], batch.pos[row] = token, position
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, request
            batch.logits[row] = every or row == len(rows) - 1
        if status := llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returned {status}")

    def _sampled(self, request: int, row: int, position: int) -> tuple[int, int]:
        token = int(self._row(row).argmax())
        self._running[request] = (token, position)
        return request, token

    def _row(self, row: int) -> Any:
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        return np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (self._vocab,))


def _context(model: Any, options: Mapping[str, Any]) -> Any:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = options["slots"] * -(-options["length"] // ROUND) * ROUND
    params.n_seq_max = options["slots"]
    params.kv_unified = False
    params.n_batch = params.n_ubatch = BATCH
    params.n_threads = params.n_threads_batch = options["threads"]
    params.flash_attn_type = FUSED[options["flash"]]
    params.type_k = params.type_v = CACHE_TYPES[options["cache"]]
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise RuntimeError(f"a context of {params.n_ctx:,} cells could not be created")
    return context


if __name__ == "__main__":
    serve(load)
