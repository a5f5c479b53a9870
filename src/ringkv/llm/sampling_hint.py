"""sampling_hint: a hint for callers who pass a field of SamplingParams as an argument, as other libraries take it."""

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import ParamSpec, TypeVar

from ringkv.base.sampling import SamplingParams

P = ParamSpec("P")
R = TypeVar("R")
FIELDS = frozenset(one.name for one in fields(SamplingParams))


def sampling_hint(method: Callable[P, R]) -> Callable[P, R]:
    """Return the method with a TypeError for such arguments that shows the correct call."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given = ", ".join(f"{name}={value!r}" for name, value in kwargs.items() if name in FIELDS)
        if given:
            name = method.__name__
            raise TypeError(f"{name}() takes sampling parameters as one argument: {name}(..., SamplingParams({given}))")
        return method(*args, **kwargs)

    return call
