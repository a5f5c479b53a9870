"""Workers: vLLM's, which give the metadata builders of this plug-in the requests of a step."""

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from ringkv_vllm.builder import SnapStreamBuilder


class SnapStreamMixin:
    def initialize_from_config(self, kv_cache_config: Any) -> None:
        super().initialize_from_config(kv_cache_config)
        for groups in self.model_runner.attn_groups:
            for group in groups:
                for builder in group.metadata_builders:
                    if isinstance(builder, SnapStreamBuilder):
                        builder.bind(self.model_runner)


class SnapStreamCPUWorker(SnapStreamMixin, CPUWorker):
    """The worker for CPUs."""
