"""SnapStreamManager: the blocks of requests that keep a fixed number of entries, in the scheduler's process.

A request has as many blocks as `arithmetic` says. Admission leaves room for all that running requests may still need,
so none is ever preempted.
"""

from collections.abc import Mapping
from typing import Any

from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import Request

from ringkv_vllm import stats
from ringkv_vllm.arithmetic import Blocks
from ringkv_vllm.settings import Settings


class SnapStreamManager(FullAttentionManager):
    def __init__(self, kv_cache_spec: Any, **kwargs: Any) -> None:
        super().__init__(kv_cache_spec, **kwargs)
        self._requests: Mapping[str, Request] = {}
        self._settings: Settings | None = None
        self._longest = 0
        self._blocks: dict[str, Blocks] = {}

    def bind(self, settings: Settings, requests: Mapping[str, Request], max_model_len: int) -> None:
        """Give it the scheduler's requests, by id."""
        self._settings, self._requests, self._longest = settings, requests, max_model_len

    @property
    def has_positionally_stable_blocks(self) -> bool:
        """False: blocks with kept entries belong to no range of tokens."""
        return False

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, *args: Any, apply_admission_cap: bool = False, **kwargs: Any
    ) -> int:
        """Return the blocks that a request needs now; at its admission also those that others may still need."""
        tokens = self._as_tokens(request_id, num_tokens)
        needed = super().get_num_blocks_to_allocate(request_id, tokens, *args, **kwargs)
        return needed + self._reserved(request_id, tokens) if apply_admission_cap else needed

    def allocate_new_blocks(self, request_id: str, num_tokens: int, *args: Any, **kwargs: Any) -> Any:
        return super().allocate_new_blocks(request_id, self._as_tokens(request_id, num_tokens), *args, **kwargs)

    def remove_skipped_blocks(self, request_id: str, processed_computed_tokens: int, *args: Any, **kwargs: Any) -> None:
        """Free a prompt's blocks once no step in flight reads them."""
        blocks = self._of(request_id)
        if processed_computed_tokens >= blocks.prompt:
            self._remove_blocks_in_range(request_id, 0, blocks.moved)

    def cache_blocks(self, request: Request, num_tokens: int, *args: Any, **kwargs: Any) -> None:
        """Hash blocks of the prompt only."""
        super().cache_blocks(request, min(num_tokens, request.num_prompt_tokens), *args, **kwargs)

    @classmethod
    def find_longest_cache_hit(cls, block_hashes: Any, max_length: int, *args: Any, **kwargs: Any) -> Any:
        """Find a hit that leaves the tokens whose queries vote to the last chunk. `max_length` leaves one."""
        spec = kwargs["kv_cache_spec"] if "kv_cache_spec" in kwargs else args[2]
        return super().find_longest_cache_hit(block_hashes, max(0, max_length + 1 - spec.queries), *args, **kwargs)

    def pop_blocks_for_free(self, request_id: str) -> Any:
        if (blocks := self._blocks.pop(request_id, None)) is not None and request_id in self._requests:
            tokens = self._requests[request_id].num_computed_tokens
            stats.EVICTED.inc(blocks.evicted(tokens))
            stats.SAVED.inc(blocks.saved(tokens))
        return super().pop_blocks_for_free(request_id)

    def _of(self, request_id: str) -> Blocks:
        """Return the blocks of a request."""
        if request_id not in self._blocks:
            assert self._settings is not None, "the scheduler is not that of ringkv-vllm; see --scheduler-cls"
            request = self._requests[request_id]
            extra = request.sampling_params.extra_args if request.sampling_params else None
            choice = self._settings.of_admitted(extra)
            self._blocks[request_id] = Blocks(choice, request.num_prompt_tokens, self.block_size)
        return self._blocks[request_id]

    def _as_tokens(self, request_id: str, num_tokens: int) -> int:
        """Return the tokens of a request without eviction that has as many blocks."""
        return self._of(request_id).row(num_tokens) * self.block_size

    def _reserved(self, request_id: str, tokens: int) -> int:
        """Return the blocks that running requests may still need, and this one after its prompt."""
        others = (other for other, blocks in self.req_to_blocks.items() if blocks and other != request_id)
        promised = sum(max(0, self._most(other) - len(self.req_to_blocks[other])) for other in others)
        return promised + max(0, self._most(request_id) - tokens // self.block_size)

    def _most(self, request_id: str) -> int:
        """Return the most blocks that a row may get."""
        request, blocks = self._requests[request_id], self._of(request_id)
        return blocks.row(min(request.num_prompt_tokens + request.max_tokens, self._longest))
