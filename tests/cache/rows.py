"""Rows of cache memory around given keys and values; for tests."""

from torch import Tensor

from ringkv.base.cache_spec import CacheSpec, LayerGroup
from ringkv.cache.body import Body
from ringkv.cache.rows import CacheRow
from ringkv.kernels.slots import Slots


def group(layers: int, heads: int, width: int) -> LayerGroup:
    return LayerGroup(tuple(range(layers)), CacheSpec.grouped(heads, width), queries=1)


def row(keys: Tensor, values: Tensor) -> CacheRow:
    """Return a row that is a view of keys, values [L, H, C, D]."""
    layers, heads, _, width = keys.shape
    planes = keys[:, None], values[:, None]
    return CacheRow((Body(group(layers, heads, width), Slots("plain", planes)),), 0)
