"""Places: what an engine needs in the host's memory, and on a GPU if it runs there."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from ringkv.base.cache_spec import LayerGroup
from ringkv.base.config import EngineConfig
from ringkv.base.kv import BLOCK
from ringkv.plan.engine_footprint import RESERVE
from ringkv.plan.footprint import Footprint, item_bytes

Place = Literal["device", "host"]
GPU_RESERVE = 2 << 30  # CUDA's context, graphs, activations and libraries' workspaces; not measured on a device yet


def reserve_on(device: str) -> int:
    """Return the bytes that are kept free on a device for everything but weights, cache and sampler."""
    return RESERVE if device == "cpu" else GPU_RESERVE


def needs(whole: Footprint, groups: Sequence[LayerGroup], engine: EngineConfig) -> Mapping[Place, Footprint]:
    """Divide an engine's footprint by place; `whole.reserve` is that of the host.

    A GPU holds everything that steps use. The host then holds the process, and in pinned memory the prefix store and
    the entries of slots in pages that steps recall.
    """
    if engine.device == "cpu":
        return {"host": whole}
    device = replace(whole, store=0, reserve=reserve_on(engine.device))
    return {"device": device, "host": Footprint(whole.host, 0, 0, whole.reserve, _pinned_store(groups, engine))}


def _pinned_store(groups: Sequence[LayerGroup], engine: EngineConfig) -> int:
    """Bytes of the prefix store, each plane of which is one pinned allocation."""
    item = item_bytes(engine.dtype)
    token = sum(group.token_bytes(item) for group in groups)
    tokens = engine.store_bytes // (BLOCK * token) * BLOCK
    planes = ((len(group.layers), plane) for group in groups for plane in group.spec.planes)
    return sum(_pinned(tokens * layers * plane.bytes(item)) for layers, plane in planes)


def _pinned(size: int) -> int:
    """Bytes that torch pins for an allocation: the next power of two."""
    return 1 << (size - 1).bit_length() if size else 0
