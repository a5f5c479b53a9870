"""auto_policy: the policy that `kv_policy auto` stands for.

A policy that evicts nothing is chosen if it fits: a question that comes after compression finds little of what was
evicted. Else it is snapstream. If conversations continue, questions come later, so it keeps what KVzip keeps over all
heads; else the question is in the prompt, whose last queries select. Long answers change nothing: scissorhands does
not beat the ring (docs/policies.md, docs/accuracy.md).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import POLICIES, KVChoice
from ringkv.models.config import ModelConfig
from ringkv.plan.checks import choice
from ringkv.plan.complete import complete
from ringkv.plan.engine_footprint import Place, needs, refuse_small_store
from ringkv.plan.kv_settings import OF_PAGES, SELECTION
from ringkv.plan.options import AUTO, Options
from ringkv.plan.units import show_bytes

OF_BUDGETS = ("kv_budget", "kv_compression")

LASTING: Mapping[str, Any] = {"kv_select": "kvzip", "kv_heads": "global"}
"""Keeps what any later question may need."""


def as_worker(options: Options) -> Options:
    """Return options of a worker that sends or receives prefixes: auto with a budget is snapstream with equal heads.

    Its prefixes are the smallest. It stays auto, which is then arkvale, if the user has set something of pages.
    """
    if options.kv_policy != AUTO or _are_set(options, OF_PAGES):
        return options
    policy = "snapstream" if _are_set(options, OF_BUDGETS) else AUTO
    return replace(options, kv_policy=policy, kv_heads=options.kv_heads or "equal")


def settled(
    model_dir: Path, config: ModelConfig, options: Options, available: Mapping[Place, int], is_crowded: bool = False
) -> tuple[Options, str]:
    """Return the options with a policy instead of auto, and why; "" if the user named one.

    available: bytes that the engine may use. What else the options leave open is not lowered to make a policy fit.
    is_crowded: other engines leave no room for a policy that evicts nothing.
    """
    if choice("kv_policy", options.kv_policy, (*POLICIES, AUTO), KVChoice().policy) != AUTO:
        return options, ""
    keeping = replace(options, kv_policy="arkvale" if _are_set(options, (*OF_PAGES, *OF_BUDGETS)) else "full")
    if _are_set(options, OF_PAGES):
        return keeping, "a setting of pages is set, which only arkvale has"
    crowded = "it does not fit beside the other models"
    obstacle = crowded if is_crowded else _obstacle(model_dir, config, keeping, available)
    if obstacle is None:
        return keeping, "every token fits in memory, so nothing is evicted"
    evicting, why = replace(options, kv_policy="snapstream"), f"{keeping.kv_policy} is not possible: {obstacle}"
    if options.kv_turns != "continue" or _are_set(options, (*SELECTION, "kv_profile")):
        return evicting, why
    lasting = replace(evicting, **LASTING)
    if obstacle := _obstacle(model_dir, config, lasting, {}):
        return evicting, f"{why}; kv_select kvzip is not possible either: {obstacle}"
    return lasting, f"{why}; kv_select kvzip keeps what the next turns may ask for"


def _obstacle(model_dir: Path, config: ModelConfig, options: Options, available: Mapping[Place, int]) -> str | None:
    """Return why an engine is not possible: what refuses it, or a place with less memory than it needs."""
    try:
        engine = complete(model_dir, config, options)
        refuse_small_store(config, engine)
    except InvalidRequest as refused:
        return str(refused)
    need = needs(config, engine)
    for place, limit in available.items():
        if place in need and (total := need[place].total(engine.slots)) > limit:
            return f"it needs {show_bytes(total)}, and {show_bytes(limit)} are available"
    return None


def _are_set(options: Options, names: tuple[str, ...]) -> bool:
    return any(getattr(options, name) is not None for name in names)
