"""engine_footprint: the footprint of an engine's configuration, all in one place."""

from ringkv.base.config import EngineConfig
from ringkv.base.kv import BLOCK
from ringkv.models.config import ModelConfig
from ringkv.plan.footprint import (
    Footprint,
    Staged,
    host_bytes,
    sampler_bytes,
    slot_bytes,
    staging_bytes,
    token_bytes,
    weight_bytes,
)
from ringkv.plan.shapes import Shape
from ringkv.plan.stored_bits import stored_as

RESERVE = 1 << 30  # the interpreter, torch, graphs and activations


def engine_footprint(config: ModelConfig, engine: EngineConfig) -> Footprint:
    """Bytes that the engine will use: as many as its ranks on one machine would if each were the largest."""
    ranks = len(engine.nodes.local(engine.rank.count))
    return _of_rank(_largest(config, engine).with_slots(engine.slot_format), engine).times(ranks)


def _of_rank(config: ModelConfig, engine: EngineConfig) -> Footprint:
    shape, token = Shape.of(config, engine.model_dir.name), staged_token_bytes(config, engine)
    compacts = engine.prefill_workspace > 0
    staged = Staged(engine.staged_entries, engine.lanes, engine.chunk, engine.kv.window, compacts)
    return Footprint(
        slot=slot_bytes(shape, engine.capacity, engine.dtype),
        weights=weight_bytes(shape, _stored(engine)),
        staging=staging_bytes(shape, staged, engine.dtype),
        reserve=RESERVE,
        store=engine.store_bytes // engine.rank.count // (BLOCK * token) * BLOCK * token,
        sampler=sampler_bytes(config.vocab_size, engine.speculate),
        slot_ranks=engine.slot_ranks,
        host=host_bytes(shape, engine.capacity, engine.dtype),
    )


def _stored(engine: EngineConfig) -> str:
    return engine.dtype if engine.weights == "bf16" else stored_as(engine.model_dir, engine.weights)


def _largest(config: ModelConfig, engine: EngineConfig) -> ModelConfig:
    return config.of_rank(engine.rank.largest, "memory", engine.attention_parallel)


def staged_token_bytes(config: ModelConfig, engine: EngineConfig) -> int:
    """Bytes of one staged token, all layers, on the largest rank."""
    return token_bytes(Shape.of(_largest(config, engine), engine.model_dir.name), engine.dtype)
