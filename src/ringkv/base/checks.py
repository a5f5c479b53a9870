"""Validation of the user's settings."""

from collections.abc import Iterable

from ringkv.base.errors import InvalidRequest
from ringkv.base.withdrawn import WITHDRAWN_VALUES

Rule = tuple[str, object, bool, str]


def check(rules: Iterable[Rule]) -> None:
    """Raise `InvalidRequest` for the first rule that fails. A rule is (field, value, is it valid, what it must be)."""
    for field, value, is_valid, rule in rules:
        if not is_valid:
            raise InvalidRequest(refusal(field, value, rule), field)


def refusal(setting: str, value: object, rule: str) -> str:
    """Return what is wrong with a value: what it must be, or what to use instead of a value that was removed."""
    remedy = WITHDRAWN_VALUES.get((setting, str(value)))
    return f"{setting} {value} was removed; {remedy}" if remedy else f"{setting} is {value!r}; it must be {rule}"


def is_count(value: object, minimum: int) -> bool:
    """Whether the value is a whole number of at least `minimum`."""
    return isinstance(value, int) and value >= minimum


def number(field: str, value: object, minimum: int) -> Rule:
    """Return the rule for a whole number of at least `minimum`."""
    return field, value, is_count(value, minimum), f"a whole number, at least {minimum}"


def one_of(field: str, value: object, values: Iterable[str]) -> Rule:
    """Return the rule for one of several names."""
    names = tuple(values)
    return field, value, value in names, f"one of {', '.join(names)}"
