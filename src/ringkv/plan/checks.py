"""Checks of single options."""

from typing import TypeVar, get_args

from ringkv.base.checks import check, one_of
from ringkv.base.errors import InvalidRequest
from ringkv.base.ranks import AttentionParallel

Name = TypeVar("Name", bound=str)


def at_least(least: int, name: str, value: int | None, default: int, most: int | None = None, why: str = "") -> int:
    """Return the value, or the default for None. Raises `InvalidRequest` naming the option if it is out of range.

    why: what the upper bound is, or what it comes from.
    """
    if value is None:
        return default
    if value < least:
        raise InvalidRequest(f"{name} is {value}; it must be at least {least}", name)
    if most is not None and value > most:
        raise InvalidRequest(f"{name} is {value:,}; it must be at most {most:,}{why and f', {why}'}", name)
    return value


def choice(name: str, value: Name | None, values: tuple[Name, ...], default: Name) -> Name:
    """Return the value, or the default for None. Raises `InvalidRequest` naming the option and its valid values."""
    if value is None:
        return default
    check([one_of(name, value, values)])
    return value


def attention_parallel(requested: AttentionParallel | None, can_divide_slots: bool, ranks: int) -> AttentionParallel:
    """Return what ranks divide of attention: by default what takes the fewest bytes.

    That is the slots if each rank gets one, because it then has its own slots' latents alone.
    """
    usual: AttentionParallel = "slots" if can_divide_slots and ranks > 1 else "heads"
    return choice("attention_parallel", requested, get_args(AttentionParallel), usual)
