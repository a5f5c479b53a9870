"""engine_footprint: the bytes of an engine's configuration, in the host's memory, and on a GPU if it runs there."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from ringkv.base.config import EngineConfig
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import BLOCK
from ringkv.models.config import ModelConfig, load_config
from ringkv.plan.footprint import (
    Footprint,
    StagedPrompts,
    host_bytes,
    item_bytes,
    sampler_bytes,
    slot_bytes,
    staging_bytes,
    token_bytes,
    weight_bytes,
)
from ringkv.plan.shapes import Shape
from ringkv.plan.stored_bits import stored_as
from ringkv.plan.units import show_bytes

Place = Literal["device", "host"]
RESERVE = 1 << 30  # the interpreter, torch, graphs and activations
GPU_RESERVE = 2 << 30  # CUDA's context, graphs, activations and libraries' workspaces; not measured on a device yet


def reserve_on(device: str) -> int:
    """Return the bytes that are kept free on a device for everything but weights, cache and sampler."""
    return RESERVE if device == "cpu" else GPU_RESERVE


def engine_footprint(config: ModelConfig, engine: EngineConfig) -> Footprint:
    """Bytes that the engine will use: as many as its ranks on one machine would if each were the largest."""
    shape = _largest_rank(config, engine)
    slots, token = shape.with_slots(engine.slot_format), token_bytes(shape, engine.dtype)
    compacts = engine.prefill_workspace > 0
    staged = StagedPrompts(engine.staged_entries, engine.lanes, engine.chunk, engine.kv.window, compacts)
    stored = engine.dtype if engine.weights == "bf16" else stored_as(engine.model_dir, engine.weights)
    need = Footprint(
        slot=slot_bytes(slots, engine.capacity, engine.dtype),
        weights=weight_bytes(shape, stored),
        staging=staging_bytes(shape, staged, engine.dtype),
        reserve=RESERVE,
        store=engine.store_bytes // engine.rank.count // (BLOCK * token) * BLOCK * token,
        sampler=sampler_bytes(config.vocab_size, engine.speculate),
        slot_ranks=engine.slot_ranks,
        host=host_bytes(slots, engine.capacity, engine.dtype),
    )
    if engine.drafter:
        need += engine_footprint(load_config(engine.drafter.model_dir), engine.drafter)
    return need.times(len(engine.nodes.local(engine.rank.count)))


def _largest_rank(config: ModelConfig, engine: EngineConfig) -> Shape:
    rank = config.of_rank(engine.rank.largest, "memory", engine.attention_parallel)
    return Shape.of(rank, engine.model_dir.name)


def needs(config: ModelConfig, engine: EngineConfig) -> Mapping[Place, Footprint]:
    """Return an engine's footprint by place.

    A GPU holds everything that steps use. The host then holds the process, and in pinned memory the prefix store and
    the entries of slots in pages that steps recall.
    """
    total = engine_footprint(config, engine)
    if engine.device == "cpu":
        return {"host": total}
    device = replace(total, store=0, reserve=reserve_on(engine.device))
    return {"device": device, "host": Footprint(total.host, 0, 0, total.reserve, _pinned_store(config, engine))}


def _pinned_store(config: ModelConfig, engine: EngineConfig) -> int:
    """Return the bytes of the prefix store. torch pins the next power of two for each plane, one allocation."""
    item = item_bytes(engine.dtype)
    token = sum(group.token_bytes(item) for group in config.groups)
    tokens = engine.store_bytes // (BLOCK * token) * BLOCK
    planes = ((len(group.layers), plane) for group in config.groups for plane in group.spec.planes)
    sizes = (tokens * layers * plane.bytes(item) for layers, plane in planes)
    return sum(1 << (size - 1).bit_length() for size in sizes if size)


def refuse_small_store(config: ModelConfig, engine: EngineConfig) -> None:
    """Raise InvalidRequest if the prefix store has no room for a block, or for a conversation's next turn."""
    token = token_bytes(_largest_rank(config, engine), engine.dtype) * engine.rank.count
    block = BLOCK * token
    if 0 < engine.store_bytes < block:
        raise InvalidRequest(
            f"prefix_store is {show_bytes(engine.store_bytes)}, less than a block of {BLOCK} tokens, "
            f"{show_bytes(block)}; raise it or set it to 0",
            "prefix_store",
        )
    need = engine_footprint(config, engine)
    slot = engine.capacity * token if engine.tier else need.slot  # which leaves out what is there
    if engine.kv.turns == "continue" and need.store < -(-slot // block) * block:
        raise InvalidRequest(
            f"kv_turns continue stores a slot of {show_bytes(slot)} for each conversation, and "
            f"prefix_store is {show_bytes(engine.store_bytes)}; raise prefix_store, or leave kv_turns out",
            "prefix_store",
        )
