"""What the backends have in common: mixins for vLLM's attention backends and their implementations."""

import time
from typing import Any, Protocol

from torch import Tensor
from vllm.config import get_current_vllm_config
from vllm.v1.kv_cache_interface import FullAttentionSpec

from ringkv_vllm import stats
from ringkv_vllm.builder import SnapStreamBuilder
from ringkv_vllm.compaction import compact
from ringkv_vllm.refusals import check_classes, check_config, check_layer
from ringkv_vllm.settings import Settings, read
from ringkv_vllm.spec import SnapStreamSpec


class LayerBlocks(Protocol):
    """The blocks of one layer's cache. n tokens, H key-value heads, D head size."""

    def read(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values [H, tokens, D] of blocks, in the order of their tokens."""

    def write(self, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Write keys and values [n, H, D] to slots int64 [n]."""


class SnapStreamBackend:
    """A backend whose layers keep a fixed number of entries. impl, builder: its classes, which a subclass names."""

    impl: type["SnapStreamImpl"]
    builder: type[SnapStreamBuilder]
    settings: Settings | None = None
    """Of the process. The spec of a layer is made after its attention, which has read them."""

    @classmethod
    def get_impl_cls(cls) -> type["SnapStreamImpl"]:
        return cls.impl

    @classmethod
    def get_builder_cls(cls) -> type[SnapStreamBuilder]:
        return cls.builder

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        settings = SnapStreamBackend.settings
        return spec if settings is None or type(spec) is not FullAttentionSpec else SnapStreamSpec.of(spec, settings)


class SnapStreamImpl:
    """An implementation that compacts the prompts that end in a step, after attention."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = get_current_vllm_config()
        settings = read(config.additional_config)
        if settings is not None:
            check_config(config)
            check_classes(config)
            check_layer(self)
        SnapStreamBackend.settings = settings

    def blocks(self, layer: Any, kv_cache: Tensor) -> LayerBlocks:
        """Return the blocks of a layer: rows of keys and values, as CUDA's backends store them."""
        return PlainBlocks(kv_cache, layer, self)

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        out = super().forward(layer, query, key, value, kv_cache, attn_metadata, *args, **kwargs)
        for task in getattr(attn_metadata, "compactions", ()):
            began, blocks = time.perf_counter(), self.blocks(layer, kv_cache)
            compact(task, query, self.num_kv_heads, self.scale, blocks.read, blocks.write)
            stats.COMPACTION.inc(time.perf_counter() - began)
        return out


class PlainBlocks:
    """Blocks [B, H, b, 2 D] of b tokens: each token's key, then its value."""

    def __init__(self, kv_cache: Tensor, layer: Any, impl: Any) -> None:
        self._cache, self._layer, self._impl = kv_cache, layer, impl

    def read(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self._cache[blocks].transpose(0, 1).flatten(1, 2).chunk(2, dim=-1)
        return keys, values

    def write(self, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        self._impl.do_kv_cache_update(self._layer, keys.contiguous(), values.contiguous(), self._cache, slots)
