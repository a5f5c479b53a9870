"""The CPU backend. Its blocks store keys and values in an order that depends on the processor and the dtype.

B blocks, H key-value heads, b tokens of a block, D head size.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from vllm import _custom_ops as ops
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadataBuilder,
)

from ringkv_vllm.backends.mixins import SnapStreamBackend, SnapStreamImpl
from ringkv_vllm.builder import SnapStreamBuilder

DIGIT = 256  # numbers below it are exact in every dtype


class SnapStreamCPUBuilder(SnapStreamBuilder, CPUAttentionMetadataBuilder):
    """The metadata builder."""


class SnapStreamCPUImpl(SnapStreamImpl, CPUAttentionBackendImpl):
    """The implementation."""

    def blocks(self, layer: Any, kv_cache: Tensor) -> "CPUBlocks":
        return CPUBlocks(kv_cache, layer, self)


class SnapStreamCPUBackend(SnapStreamBackend, CPUAttentionBackend):
    impl, builder = SnapStreamCPUImpl, SnapStreamCPUBuilder


class CPUBlocks:
    """One layer's blocks [B, H, 2 b, D]: keys, then values."""

    def __init__(self, kv_cache: Tensor, layer: Any, impl: CPUAttentionBackendImpl) -> None:
        count, heads, self._tokens, _ = kv_cache.shape
        self._cache, self._layer, self._impl = kv_cache, layer, impl
        self._keys, self._values = kv_cache.view(count, heads, 2 * self._tokens, -1).chunk(2, dim=2)

    def read(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        orders = order_of(self._layer.isa, self._keys.dtype, self._tokens, self._keys.shape[-1])
        keys, values = (
            _ordered(part[blocks], order) for part, order in zip((self._keys, self._values), orders, strict=True)
        )
        return keys, values

    def write(self, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        self._impl.do_kv_cache_update(self._layer, keys.contiguous(), values.contiguous(), self._cache, slots)


def _ordered(stored: Tensor, order: Tensor) -> Tensor:
    """Return [H, B * b, D] of stored blocks [B, H, b, D]."""
    blocks, heads, tokens, width = stored.shape
    return stored.reshape(blocks, heads, -1)[..., order].transpose(0, 1).reshape(heads, blocks * tokens, width)


@cache
def order_of(isa: str, dtype: torch.dtype, tokens: int, width: int) -> tuple[Tensor, Tensor]:
    """Return int64 [b * D] each for keys and values: where a block stores each element of its tokens.

    It is learnt by writing numbers through vLLM's own operator, a digit of base 256 at a time.
    """
    number = torch.arange(tokens * width)
    stored = torch.zeros(2, tokens * width, dtype=torch.int64)
    for digit in (1, DIGIT, DIGIT**2):
        written = (number // digit % DIGIT).to(dtype).view(tokens, 1, width)
        cached = torch.zeros(1, 1, 2 * tokens, width, dtype=dtype)
        keys, values = cached.chunk(2, dim=2)
        ops.cpu_attn_reshape_and_cache(written, written, keys, values, torch.arange(tokens), isa)
        stored += digit * torch.stack([part.reshape(-1).long() for part in (keys, values)])
    assert all(torch.equal(part.sort().values, number) for part in stored), "vLLM's blocks are not an order of tokens"
    keys_order, values_order = stored.argsort(1)
    return keys_order, values_order
