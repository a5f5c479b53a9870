"""SamplingParams refuse values that are out of bounds, with the field, the value and the remedy."""

import pytest

from ringkv.base.errors import InvalidRequest
from ringkv.base.sampling import SamplingParams

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "values", "remedy"),
    [
        ("temperature", (-1e-9, NAN, -INF), "it must be 0 or more"),
        ("temperature", (10001, 3.5e38, 1e300, INF, 10**400), "it must be at most 10,000"),
        ("repetition_penalty", (0, -1, 0.0099, 100.1, 1e-38, INF, NAN, 10**400), "it must be from 0.01 to 100"),
        ("presence_penalty", (-2.1, 2.1, INF, NAN), "it must be from -2 to 2"),
        ("frequency_penalty", (-2.1, 2.1, INF, NAN), "it must be from -2 to 2"),
    ],
)
def test_values_out_of_bounds_are_refused(field: str, values: tuple[float, ...], remedy: str) -> None:
    for value in values:
        with pytest.raises(InvalidRequest) as refused:
            SamplingParams(**{field: value})  # type: ignore[arg-type]
        assert str(refused.value) == f"{field} is {value!r}; {remedy}"
        assert refused.value.param == field


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", (0, 1e-300, 1e-5, 2, 1e4)),
        ("repetition_penalty", (0.01, 1, 100)),
        ("presence_penalty", (-2, 2)),
        ("frequency_penalty", (-2, 2)),
    ],
)
def test_the_bounds_themselves_are_accepted(field: str, values: tuple[float, ...]) -> None:
    for value in values:
        assert getattr(SamplingParams(**{field: value}), field) == value  # type: ignore[arg-type]


def test_a_temperature_below_a_hundred_thousandth_is_greedy() -> None:
    assert [SamplingParams(temperature=t).is_greedy for t in (0, 1e-40, 9.9e-6, 1e-5, 1)] == [True] * 3 + [False] * 2


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("max_tokens", 1.5, "max_tokens is 1.5; it must be a whole number"),
        ("max_tokens", "5", "max_tokens is '5'; it must be a whole number"),
        ("max_tokens", None, "max_tokens is None; it must be a whole number"),
        ("temperature", "hot", "temperature is 'hot'; it must be a number"),
        ("top_p", None, "top_p is None; it must be a number"),
        ("seed", "x", "seed is 'x'; it must be a whole number"),
        ("logprobs", 0.5, "logprobs is 0.5; it must be a whole number"),
        ("top_k", INF, "top_k is inf; it must be a whole number"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_field(field: str, value: object, rule: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert (refused.value.param, str(refused.value)) == (field, rule)


def test_a_whole_number_may_be_written_as_a_float() -> None:
    assert SamplingParams(top_k=20.0, seed=None).top_k == 20
