"""Selectors: each has its own parameters and refuses invalid values."""

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from ringkv.base.errors import InvalidRequest
from ringkv.base.selectors import SELECTORS, TOVA, KeyDiff, KVzip, Selector, SnapKV, parameters


@pytest.mark.parametrize(
    ("kind", "field", "value", "rule"),
    [
        (SnapKV, "window", 0, "at least 1"),
        (SnapKV, "window", -5, "at least 1"),
        (SnapKV, "window", 2.5, "a whole number"),
        (SnapKV, "window", "8", "a whole number"),
        (SnapKV, "kernel", 0, "at least 1"),
        (SnapKV, "kernel", 4, "odd"),
        (SnapKV, "pooling", "median", "one of avg, max"),
    ],
)
def test_an_invalid_parameter_is_refused_by_name(kind: type[Selector], field: str, value: Any, rule: str) -> None:
    with pytest.raises(InvalidRequest, match=f"kv_{field} is {value!r}; it must be .*{rule}") as refused:
        kind(**{field: value})
    assert refused.value.param == f"kv_{field}"


def test_a_selector_takes_its_own_parameters_and_no_others() -> None:
    assert {name: list(parameters(kind())) for name, kind in SELECTORS.items()} == {
        "snapkv": ["window", "kernel", "pooling"],
        "tova": [],
        "keydiff": [],
        "kvzip": [],
    }
    with pytest.raises(TypeError):
        KeyDiff(kernel=5)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("selector", "queries"),
    [(SnapKV(window=7), 7), (TOVA(), 1), (KeyDiff(), 0), (KVzip(), 0)],
)
def test_a_selector_reports_how_many_trailing_queries_it_uses(selector: Selector, queries: int) -> None:
    assert selector.queries == queries


def test_selectors_are_equal_if_class_and_parameters_are() -> None:
    every = [kind() for kind in SELECTORS.values()] + [SnapKV(window=8)]
    assert len(set(every)) == len(set(map(repr, every))) == len(every)
    assert SnapKV() == replace(SnapKV(window=8), window=32)
    with pytest.raises(FrozenInstanceError):
        SnapKV().window = 8  # type: ignore[misc]
