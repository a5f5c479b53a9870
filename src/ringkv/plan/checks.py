"""Checks of single options."""

from typing import TypeVar

from ringkv.base.checks import check, one_of
from ringkv.base.errors import InvalidRequest

Name = TypeVar("Name", bound=str)


def at_least(least: int, name: str, value: int | None, default: int) -> int:
    """Return the value, or the default for None. Raises `InvalidRequest` naming the option if it is below `least`."""
    if value is None:
        return default
    if value < least:
        raise InvalidRequest(f"{name} is {value}; it must be at least {least}", name)
    return value


def choice(name: str, value: Name | None, values: tuple[Name, ...], default: Name) -> Name:
    """Return the value, or the default for None. Raises `InvalidRequest` naming the option and its valid values."""
    if value is None:
        return default
    check([one_of(name, value, values)])
    return value
