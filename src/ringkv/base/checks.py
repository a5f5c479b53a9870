"""Checks that every choice of a user's goes through."""

from collections.abc import Iterable

from ringkv.base.errors import InvalidRequest

Rule = tuple[str, object, bool, str]


def check(rules: Iterable[Rule]) -> None:
    """Raise `InvalidRequest` for the first (field, value, is it valid, what it must be) that is not valid."""
    for field, value, is_valid, rule in rules:
        if not is_valid:
            raise InvalidRequest(f"{field} is {value!r}; it must be {rule}", field)


def is_count(value: object, least: int) -> bool:
    """Whether it is a whole number of `least` or more."""
    return isinstance(value, int) and value >= least


def number(field: str, value: object, least: int) -> Rule:
    """The rule for a whole number of `least` or more."""
    return field, value, is_count(value, least), f"a whole number, at least {least}"


def one_of(field: str, value: object, values: Iterable[str]) -> Rule:
    """The rule for one of some names."""
    names = tuple(values)
    return field, value, value in names, f"one of {', '.join(names)}"
