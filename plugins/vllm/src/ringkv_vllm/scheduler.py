"""Schedulers: vLLM's, whose last chunk of a prompt has the queries that vote, and which replay an answer by token."""

from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from ringkv.base.errors import InvalidRequest
from ringkv_vllm.arithmetic import Blocks
from ringkv_vllm.manager import SnapStreamManager
from ringkv_vllm.refusals import check_config
from ringkv_vllm.settings import Settings, read

logger = init_logger("vllm.ringkv")


class SnapStreamMixin:
    """A scheduler of requests that `SnapStreamManager` has the blocks of."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_config(self.vllm_config)
        settings = read(self.vllm_config.additional_config)
        if settings is None:
            raise InvalidRequest(
                'the scheduler of ringkv-vllm needs --additional-config \'{"ringkv": {"kv_budget": N}}\''
            )
        self._queries = settings.queries
        managers = self.kv_cache_manager.coordinator.single_type_managers
        if not all(isinstance(manager, SnapStreamManager) for manager in managers):
            raise InvalidRequest("the model has layers that ringkv-vllm does not serve, such as a sliding window")
        for manager in managers:
            manager.bind(settings, self.requests, self.max_model_len)
        least = self._queries + self.scheduler_config.max_num_seqs
        if self.max_num_scheduled_tokens < least:
            raise InvalidRequest(
                f"--max-num-batched-tokens {self.max_num_scheduled_tokens} may leave no room for the last "
                f"{self._queries} tokens of a prompt beside --max-num-seqs {self.scheduler_config.max_num_seqs}; "
                f"raise it to {least}"
            )
        if 0 < (threshold := self.scheduler_config.long_prefill_token_threshold) < self._queries:
            raise InvalidRequest(
                f"--long-prefill-token-threshold {threshold} cuts off a prompt's last {self._queries} tokens, which "
                f"select together; raise it to {self._queries}"
            )
        for manager in managers:
            _log_plan(manager, settings, self.max_model_len)

    def _reserve_prefill_lookahead(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """End no chunk so near the prompt's end that queries that vote are missing in the last one.

        A request that was preempted runs its prompt, and then its answer token by token, so that its ring is as before.
        """
        left = request.num_prompt_tokens - num_computed_tokens
        if left <= 0:
            return min(num_new_tokens, 1)
        if num_new_tokens >= left:
            return left
        return max(0, min(num_new_tokens, left - self._queries))

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(request, *args, **kwargs)
        request.skip_reading_prefix_cache = True  # a hit might go beyond its prompt


def _log_plan(manager: SnapStreamManager, settings: Settings, longest: int) -> None:
    """Log how many of the longest requests fit, with the plug-in and without it."""
    free, prompt = manager.block_pool.get_num_free_blocks(), longest - 1
    blocks = Blocks(settings.choice, prompt, manager.block_size)
    kept, whole = blocks.row(longest) - blocks.moved, -(-longest // manager.block_size)
    ours = max(0, (free - blocks.row(prompt)) // kept + 1)  # one of them still has its prompt
    logger.info(
        "ringkv: %d requests of %d tokens fit, each with %d entries; without it %d would fit",
        ours,
        longest,
        settings.choice.budget,
        free // whole,
    )


class SnapStreamScheduler(SnapStreamMixin, Scheduler):
    """The scheduler for CPUs."""


class SnapStreamAsyncScheduler(SnapStreamMixin, AsyncScheduler):
    """The scheduler for GPUs, which plans a step while the one before it runs."""
