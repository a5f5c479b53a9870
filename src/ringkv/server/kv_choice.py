"""A request's kv_* fields as the cache it asks for."""

from dataclasses import replace
from typing import Any

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import POLICIES, TURNS, KVChoice
from ringkv.server.schemas import GenerationBody


def kv_choice(body: GenerationBody, default: KVChoice, capacity: int) -> KVChoice | None:
    """The cache that a body asks for, the rest taken from `default`; None where it asks for nothing.

    A request for the full cache gets the slot's whole `capacity` (in entries) unless it names a budget.
    """
    asked = {
        "policy": body.kv_policy,
        "budget": body.kv_budget,
        "sinks": body.kv_sinks,
        "recent": body.kv_recent,
        "window": body.kv_window,
        "turns": body.kv_turns,
        "protect": None if body.kv_protect is None else tuple(body.kv_protect),
    }
    changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if not changes:
        return None
    _check(body, capacity)
    if body.kv_policy == "full":
        changes.setdefault("budget", None)
    return replace(default, **changes)


def _check(body: GenerationBody, capacity: int) -> None:
    for name, word, known in (("kv_policy", body.kv_policy, POLICIES), ("kv_turns", body.kv_turns, TURNS)):
        if word is not None and word not in known:
            raise InvalidRequest(f"{name} is {word!r}; it must be one of {', '.join(known)}", name)
    if body.kv_budget is not None and not 1 <= body.kv_budget <= capacity:
        raise InvalidRequest(
            f"kv_budget is {body.kv_budget}; it must be from 1 to the slot's {capacity} entries", "kv_budget"
        )
    for name, value, least in (("kv_sinks", body.kv_sinks, 0), ("kv_window", body.kv_window, 1)):
        if value is not None and not least <= value <= capacity:
            raise InvalidRequest(f"{name} is {value}; it must be from {least} to {capacity}", name)
    for start, stop in body.kv_protect or ():
        if not 0 <= start < stop:
            rule = "each span is the first of its tokens and the one after its last"
            raise InvalidRequest(f"kv_protect holds [{start}, {stop}]; {rule}", "kv_protect")
    if body.kv_recent is not None and not 0 < body.kv_recent <= capacity:
        rule = f"a share of the budget (below 1) or up to {capacity} entries"
        raise InvalidRequest(f"kv_recent is {body.kv_recent}; it must be {rule}", "kv_recent")
