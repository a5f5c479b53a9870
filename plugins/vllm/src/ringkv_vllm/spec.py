"""SnapStreamSpec: the cache of attention layers whose requests keep a fixed number of entries."""

from dataclasses import dataclass, fields, replace
from typing import Self

from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec

from ringkv_vllm.settings import Settings


@dataclass(frozen=True, kw_only=True)
class SnapStreamSpec(FullAttentionSpec):
    """budget: entries that a request keeps at most. queries: tokens of a prompt's end that its last chunk has."""

    budget: int = 0
    queries: int = 1

    @classmethod
    def of(cls, spec: FullAttentionSpec, settings: Settings) -> Self:
        """Return the spec of a layer that would keep everything."""
        of_layer = {field.name: getattr(spec, field.name) for field in fields(spec)}
        assert settings.choice.budget is not None
        return cls(**of_layer, budget=settings.choice.budget, queries=settings.queries)

    @property
    def kept_blocks(self) -> int:
        return -(-self.budget // self.block_size)

    def max_num_blocks_per_req(self, vllm_config: VllmConfig, max_len: int) -> int:
        """Return the width of a row: the blocks of the longest prompt, and those of what is kept."""
        return super().max_num_blocks_per_req(vllm_config, max_len) + self.kept_blocks

    def max_memory_usage_bytes(self, vllm_config: VllmConfig) -> int:
        """Return the bytes of the longest prompt when it has just been compressed."""
        return super().max_memory_usage_bytes(vllm_config) + self.kept_blocks * self.page_size_bytes

    @classmethod
    def merge(cls, specs: list[Self]) -> Self:
        budgets = {(spec.budget, spec.queries) for spec in specs}
        assert len(budgets) == 1, "layers of a group keep as many entries"
        return replace(super().merge(specs), budget=specs[0].budget, queries=specs[0].queries)
