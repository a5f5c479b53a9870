"""Rows of cache memory around given keys and values; for tests."""

from torch import Tensor

from ringkv.base.cache_spec import CacheSpec, LayerGroup
from ringkv.cache.body import plain_body
from ringkv.cache.rows import CacheRow


def group(layers: int, heads: int, width: int) -> LayerGroup:
    return LayerGroup(tuple(range(layers)), CacheSpec.grouped(heads, width), queries=1)


def row(keys: Tensor, values: Tensor) -> CacheRow:
    """Return a row that is a view of keys, values [L, H, C, D]."""
    layers, heads, _, width = keys.shape
    return CacheRow((plain_body(group(layers, heads, width), (keys[:, None], values[:, None])),), 0)
