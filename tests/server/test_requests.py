from dataclasses import fields
from typing import Any

import pytest

from ringkv.base.sampling import SamplingParams
from ringkv.server.int64 import INT64
from ringkv.server.requests import sampling_params
from ringkv.server.schemas import CompletionBody
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
