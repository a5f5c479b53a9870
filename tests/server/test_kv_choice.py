from dataclasses import replace
from typing import Any

import pytest

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import POLICIES, KVChoice
from ringkv.base.selectors import SELECTORS, ExpectedAttention, SnapKV
from ringkv.server.kv_choice import kv_choice
from ringkv.server.schemas import GenerationBody

DEFAULT = KVChoice("snapstream", budget=512, sinks=7, recent=0.5, select=SnapKV(window=32))
CAPACITY = 1024


def choice(**fields: Any) -> KVChoice | None:
    return kv_choice(GenerationBody(**fields), DEFAULT, CAPACITY)


def test_a_body_without_kv_fields_gives_none() -> None:
    assert choice(temperature=0.5) is None


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "full"])
def test_fields_that_a_body_leaves_unset_have_the_servers_values(policy: str) -> None:
    assert choice(kv_policy=policy) == replace(DEFAULT, policy=policy)


def test_every_field_reaches_the_choice() -> None:
    made = choice(
        kv_policy="snapkv",
        kv_budget=100,
        kv_sinks=0,
        kv_recent=25,
        kv_window=16,
        kv_protect=[[0, 9]],
        kv_turns="continue",
    )
    assert made == KVChoice(
        "snapkv", budget=100, sinks=0, recent=25, select=SnapKV(window=16), protect=((0, 9),), turns="continue"
    )


def test_every_selector_can_be_requested_with_its_parameters() -> None:
    snapkv = {"kv_window": 8, "kv_kernel": 5, "kv_pooling": "avg", "kv_groups": "max", "kv_domain": "candidates"}
    for fields, select in (
        (snapkv, SnapKV(8, 5, "avg", "max", "candidates")),
        ({"kv_select": "expected", "kv_window": 8}, ExpectedAttention(8)),
        *(({"kv_select": name}, SELECTORS[name]()) for name in SELECTORS),
    ):
        assert choice(**fields, kv_elastic=False) == replace(DEFAULT, select=select, elastic=False)


def test_a_parameter_that_the_selector_does_not_have_is_refused_by_name() -> None:
    message = "kv_kernel is a parameter of kv_select snapkv; kv_select keydiff takes none"
    with pytest.raises(InvalidRequest, match=message) as caught:
        choice(kv_select="keydiff", kv_kernel=5)
    assert caught.value.param == "kv_kernel"


def test_the_full_cache_is_the_whole_slot_unless_a_budget_is_named() -> None:
    assert choice(kv_policy="full") == replace(DEFAULT, policy="full", budget=None)
    assert choice(kv_policy="full", kv_budget=9) == replace(DEFAULT, policy="full", budget=9)


@pytest.mark.parametrize("budget", [1, CAPACITY])
def test_a_budget_goes_up_to_the_slots_capacity(budget: int) -> None:
    made = choice(kv_budget=budget)
    assert made is not None
    assert made.budget == budget


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_policy", "FULL"),
        ("kv_budget", CAPACITY + 1),
        ("kv_sinks", CAPACITY + 1),
        ("kv_recent", float("nan")),
        ("kv_recent", -0.5),
        ("kv_window", 0),
        ("kv_protect", [(5, 5)]),
        ("kv_turns", "again"),
        ("kv_budget", 0),
        ("kv_sinks", -1),
        ("kv_recent", 1.5),
        ("kv_recent", CAPACITY + 1),
        ("kv_window", CAPACITY + 1),
        ("kv_kernel", 4),
        ("kv_kernel", CAPACITY + 1),
        ("kv_pooling", "median"),
        ("kv_groups", "sum"),
        ("kv_domain", "x"),
        ("kv_select", "h2o"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=field) as caught:
        choice(**{field: value})
    assert caught.value.param == field
