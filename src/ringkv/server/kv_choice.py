"""Converts a request's kv_* fields to a `KVChoice`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.plan.kv_settings import PER_REQUEST, changed
from ringkv.plan.slot_format import check_read
from ringkv.server.schemas import GenerationBody


def kv_choice(body: GenerationBody, default: KVChoice, capacity: int) -> KVChoice | None:
    """Return the requested cache, with `default` for unset fields; None if no field is set.

    The full cache gets all of the slot's `capacity` (in entries) unless the request sets a budget.
    """
    given = {name: value for name in PER_REQUEST if (value := getattr(body, name)) is not None}
    if not given:
        return None
    _check_size(given, capacity)
    base = replace(default, budget=None) if body.kv_policy == "full" else default
    choice = changed(base, given)
    if "kv_read" in given:
        check_read(choice)
    return choice


def _check_size(given: Mapping[str, Any], capacity: int) -> None:
    """Raise InvalidRequest for a number above `capacity`: it is useless, and wide pooling costs time and memory."""
    for name, value in given.items():
        if isinstance(value, int | float) and value > capacity:
            raise InvalidRequest(
                f"{name} is {value}; a slot has {capacity} entries; send at most that, or start with a larger budget",
                name,
            )
