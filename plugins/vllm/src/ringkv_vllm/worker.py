"""Workers: vLLM's, which give the metadata builders of this plug-in the requests of a step."""

from typing import Any

from vllm.platforms import current_platform
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu_worker import Worker

from ringkv_vllm.builder import SnapStreamBuilder
from ringkv_vllm.running import FirstRunner, SecondRunner

_BASE: Any = CPUWorker if current_platform.is_cpu() else Worker


class SnapStreamWorker(_BASE):
    """The worker of this machine."""

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        # A GPU's graphs are captured later, of steps whose tensors are the builders'.
        super().initialize_from_config(kv_cache_config)
        runner, is_second = self.model_runner, getattr(self, "use_v2_model_runner", False)
        self._running = SecondRunner(runner, {}) if is_second else FirstRunner(runner)
        for groups in runner.attn_groups:
            for group in groups:
                for builder in group.metadata_builders:
                    if isinstance(builder, SnapStreamBuilder):
                        builder.bind(self._running)

    def execute_model(self, scheduler_output: Any) -> Any:
        if isinstance(self._running, SecondRunner):
            self._running.note(scheduler_output)
        return super().execute_model(scheduler_output)
