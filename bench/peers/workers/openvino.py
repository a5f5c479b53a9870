"""OpenVINO GenAI: its continuous batching pipeline.

Options: "threads"; "properties" of the device, such as KV_CACHE_PRECISION; "scheduler", fields of SchedulerConfig;
"evict", fields of CacheEvictionConfig.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy
import openvino  # type: ignore[import-not-found]
import openvino_genai  # type: ignore[import-not-found]

from bench.peers.workers.serve import serve

ENDLESS = 10**6


class OpenVINO:
    def __init__(self, model: str, options: Mapping[str, Any]) -> None:
        properties = {"INFERENCE_NUM_THREADS": options["threads"], **options["properties"]}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, _scheduler(options), "CPU", properties)
        self._handles: dict[int, Any] = {}
        self._ids = 0  # the next request id; a pipeline does not accept an id twice

    def submit(self, prompts: list[list[int]]) -> None:
        config = openvino_genai.GenerationConfig(max_new_tokens=ENDLESS, ignore_eos=True, do_sample=False)
        for place, tokens in enumerate(prompts):
            ids = openvino.Tensor(numpy.array([tokens], dtype=numpy.int64))
            self._handles[place] = self._pipeline.add_request(self._ids, ids, config)
            self._ids += 1

    def step(self) -> Iterable[tuple[int, int]]:
        self._pipeline.step()
        return [
            (request, token)
            for request, handle in self._handles.items()
            if handle.can_read()
            for output in handle.read().values()
            for token in output.generated_ids
        ]

    def drop(self, requests: Iterable[int]) -> None:
        for request in requests:
            self._handles.pop(request).cancel()
        if not self._handles:
            while self._pipeline.has_non_finished_requests():
                self._pipeline.step()  # frees their blocks

    def facts(self) -> Mapping[str, Any]:
        metrics = self._pipeline.get_metrics()
        return {"version": openvino_genai.__version__, "cache_bytes": int(metrics.kv_cache_size_in_bytes)}


def _scheduler(options: Mapping[str, Any]) -> Any:
    config = openvino_genai.SchedulerConfig()
    for name, value in options["scheduler"].items():
        setattr(config, name, value)
    if evict := options.get("evict"):
        config.use_cache_eviction = True
        config.cache_eviction_config = _eviction(**evict)
    return config


def _eviction(mode: str, **sizes: Any) -> Any:
    return openvino_genai.CacheEvictionConfig(aggregation_mode=getattr(openvino_genai.AggregationMode, mode), **sizes)


if __name__ == "__main__":
    serve(OpenVINO)
