"""A request's kv_* fields as the cache it asks for."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.plan.kv_settings import PER_REQUEST, changed
from ringkv.server.schemas import GenerationBody


def kv_choice(body: GenerationBody, default: KVChoice, capacity: int) -> KVChoice | None:
    """The cache that a body asks for, the rest taken from `default`; None if it asks for nothing.

    A request for the full cache gets the slot's whole `capacity` (in entries) unless it names a budget.
    """
    given = {name: value for name in PER_REQUEST if (value := getattr(body, name)) is not None}
    if not given:
        return None
    _check_size(given, capacity)
    whole = replace(default, budget=None) if body.kv_policy == "full" else default
    return changed(whole, given)


def _check_size(given: Mapping[str, Any], capacity: int) -> None:
    """No number of tokens or entries has a use beyond a slot's; pooling over more would take time and memory."""
    for name, value in given.items():
        if isinstance(value, int | float) and value > capacity:
            raise InvalidRequest(f"{name} is {value}; a slot has {capacity} entries, so ask for that or less", name)
