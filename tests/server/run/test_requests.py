from contextlib import nullcontext
from dataclasses import fields, replace
from typing import Any

import pytest

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import POLICIES, KVChoice
from ringkv.base.sampling import SamplingParams
from ringkv.base.selectors import SELECTORS, SnapKV
from ringkv.server.run.requests import check_logprobs, kv_choice, sampling_params
from ringkv.server.run.schemas import INT64, CompletionBody, GenerationBody
from tests.server.conftest import Served

SENT: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.2,
    "frequency_penalty": -0.2,
    "logit_bias": {5: -3.0},
    "seed": 11,
    "stop": ("a", "b"),
    "stop_token_ids": (3, 4),
    "min_tokens": 2,
    "ignore_eos": True,
}


def params(number: int = 0, max_tokens: int = 8, **sent: Any) -> SamplingParams:
    sent = {name: list(value) if isinstance(value, tuple) else value for name, value in sent.items()}
    return sampling_params(CompletionBody(prompt="x", **sent), max_tokens, number)


def test_every_sampling_field_reaches_the_engine_as_sent() -> None:
    assert params(logprobs=3, **SENT) == SamplingParams(max_tokens=8, logprobs=3, **SENT)


def test_every_sampling_field_is_covered() -> None:
    others = {"max_tokens", "logprobs", "prompt_logprobs", "grammar"}
    assert {field.name for field in fields(SamplingParams)} == {*SENT, *others}


def test_unset_fields_have_openais_defaults() -> None:
    assert params() == SamplingParams(max_tokens=8, temperature=1.0)


CARD = {"temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.1}


@pytest.mark.parametrize("sent", [{}, {"seed": 3}, {"temperature": None}])
def test_a_request_that_sets_no_sampling_has_the_models(sent: dict[str, Any]) -> None:
    got = sampling_params(CompletionBody(prompt="x", **sent), 8, recommended=CARD)
    assert got == SamplingParams(max_tokens=8, seed=sent.get("seed"), **CARD)


@pytest.mark.parametrize("sent", [{"temperature": 0}, {"top_p": 0.5}, {"repetition_penalty": 1.0}])
def test_a_request_that_sets_one_of_them_has_openais(sent: dict[str, Any]) -> None:
    got = sampling_params(CompletionBody(prompt="x", **sent), 8, recommended=CARD)
    assert got == SamplingParams(**{"max_tokens": 8, "temperature": 1.0, **sent})


def test_nulls_count_as_unset() -> None:
    assert params(**dict.fromkeys(SENT)) == params()


def test_temperature_0_is_not_mistaken_for_an_unset_field() -> None:
    assert params(temperature=0).temperature == 0


def test_one_stop_string_is_a_list_of_it() -> None:
    assert params(stop="end").stop == ("end",)


@pytest.mark.parametrize("seed", [0, 7, -1, INT64, -INT64])
def test_each_of_n_answers_has_a_seed_of_its_own_and_the_first_the_clients(seed: int) -> None:
    seeds = [params(seed=seed, number=number).seed for number in range(8)]
    assert seeds[0] == seed
    assert len(set(seeds)) == 8
    assert all(one is not None and -(2**63) <= one < 2**63 for one in seeds)


def test_without_a_seed_none_is_set() -> None:
    assert params(number=3).seed is None


def test_a_salt_reaches_the_engine(fresh: Served) -> None:
    for salt in ("mine", None):
        fresh.post("completions", prompt="x", cache_salt=salt)
    assert [request.salt for request in fresh.engine.submitted] == ["mine", ""]


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
    snapkv = {"kv_window": 8, "kv_kernel": 5, "kv_pooling": "avg"}
    for sent, select in (
        (snapkv, SnapKV(8, 5, "avg")),
        ({"kv_select": "snapkv", "kv_window": 8}, SnapKV(8)),
        *(({"kv_select": name}, SELECTORS[name]()) for name in SELECTORS),
    ):
        assert choice(**sent, kv_elastic=False) == replace(DEFAULT, select=select, elastic=False)


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
        ("kv_select", "x"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=field) as caught:
        choice(**{field: value})
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("sent", "prompt_logprobs", "fits"),
    [
        ({"n": 128, "logprobs": 20}, 20, False),
        ({"logprobs": 20}, 20, True),
        ({"n": 128}, None, True),
        ({"n": 128, "logprobs": 0}, None, True),
        ({"best_of": 128, "logprobs": 20}, None, False),
    ],
)
def test_the_log_probabilities_of_an_answer_are_bounded(
    sent: dict[str, Any], prompt_logprobs: int | None, fits: bool
) -> None:
    body = CompletionBody(prompt="x", max_tokens=1000, **sent)
    with nullcontext() if fits else pytest.raises(InvalidRequest) as refused:
        check_logprobs(body, [[1] * 8000], 1000, prompt_logprobs)
    assert fits or refused.value.param == "logprobs"
