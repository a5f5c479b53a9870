"""refusal: why engines do not fit in memory, and what would."""

from collections.abc import Sequence
from dataclasses import replace

from ringkv.base.config import EngineConfig
from ringkv.models.config import ModelConfig
from ringkv.plan.complete import is_quantisable
from ringkv.plan.engine_footprint import Place, engine_footprint
from ringkv.plan.footprint import Footprint
from ringkv.plan.units import show_bytes


def several_do_not_fit(parts: Sequence[tuple[str, int]], where: str, memory: int) -> str:
    """parts: each model's name and the bytes that it needs."""
    needed = ", ".join(f"{name} {show_bytes(size)}" for name, size in parts)
    return (
        f"{len(parts)} models need {show_bytes(sum(size for _, size in parts))} ({needed}){where}, and "
        f"{show_bytes(memory)} are available; serve fewer models, or lower slots, prefix_store or prompt_tokens"
    )


def one_does_not_fit(config: ModelConfig, engine: EngineConfig, need: Footprint, where: str, memory: int) -> str:
    """where: as part of a message, see `where`."""
    available = f"need {show_bytes(need.total(engine.slots))}{where}, and {show_bytes(memory)} are available"
    store, reserve = show_bytes(need.store), show_bytes(need.reserve)
    if not need.weights and not need.slot:  # they are on a device
        remedy = "lower prefix_store" if need.store and need.reserve <= memory else "free some memory"
        return f"{store} of prefix store and {reserve} of reserve {available}; {remedy}"
    slots, fitting = f"{engine.slots} slots of {engine.capacity:,} entries", need.slots_in(memory)
    if not need.weights:  # the entries of slots, beside a device
        remedy = "not even one slot fits, so lower prompt_tokens, or leave kv_tier out"
        if fitting or need.store:
            remedy = _remedy(need, fitting, memory, "prompt_tokens")
        held = f"{slots} ({show_bytes(need.slot)} each), {store} of prefix store and {reserve} of reserve"
        return f"with kv_tier {engine.tier}, {held} {available}; {remedy}"
    workspace, each = engine.prefill_workspace, show_bytes(need.entries(engine.slots) // engine.slots)
    staged = f"prefill_workspace of {workspace:,} tokens" if workspace else f"prompt of {engine.prompt_tokens:,} tokens"
    return (
        f"{slots} ({each} each, and {show_bytes(need.sampler)} of sampler state) "
        f"with {show_bytes(need.weights)} of weights, {show_bytes(need.staging)} of staging for a {staged}"
        f"{f', {store} of prefix store' if need.store else ''} and {reserve} of reserve {available}; "
        f"{_remedy(need, fitting, memory, 'prefill_workspace' if workspace else 'prompt_tokens')}"
        f"{_smaller_weights(config, engine, memory)}"
    )


def where(place: Place, device: str) -> str:
    """Return the place as a part of a message; nothing if there is only one."""
    if device == "cpu":
        return ""
    return f" on {device}" if place == "device" else " in the host's memory"


def _smaller_weights(config: ModelConfig, engine: EngineConfig, memory: int) -> str:
    """A further remedy, if 4-bit weights would make everything fit."""
    if engine.weights != "bf16" or not is_quantisable(engine.dtype, engine.device):
        return ""
    need = engine_footprint(config, replace(engine, weights="int4"))
    if need.total(engine.slots) > memory:
        return ""
    return f', or use weights="int4", which take {show_bytes(need.weights)}; then everything fits'


def _remedy(need: Footprint, slots: int, memory: int, staged: str) -> str:
    """staged: the option that bounds the staging."""
    if need.store and need.total(1) - need.store <= memory:
        return "lower prefix_store"
    if slots:
        return f"{slots} {'slot' if slots == 1 else 'slots'} would fit"
    if need.total(1) - need.staging - need.store > memory:
        return "not even one slot fits, so choose a smaller model or budget"
    return f"not even one slot fits, so lower {staged}"
