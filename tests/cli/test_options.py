from dataclasses import fields

import pytest

from ringkv.base.errors import InvalidRequest
from ringkv.base.sampling import SamplingParams
from ringkv.cli.options import ConversationOptions, EngineOptions, Sampling, ServingOptions
from ringkv.plan.options import AUTO, Options

RANKS = {"tensor_parallel", "expert_parallel", "attention_parallel"} | {
    "nnodes",
    "node_rank",
    "master_addr",
    "master_port",
}


def names(kind: type) -> set[str]:
    return {one.name for one in fields(kind)}


def test_every_engine_option_has_a_flag_except_two_for_programs() -> None:
    assert names(Options) - names(ServingOptions) == {"chunk", "lanes"}
    assert names(ServingOptions) - names(Options) == {"model"}
    assert names(ServingOptions) - names(ConversationOptions) == {"max_step"} | RANKS


def test_only_conversations_have_a_prefix_store_and_turns() -> None:
    assert names(ConversationOptions) - names(EngineOptions) == {"kv_turns", "prefix_store"}
    assert ConversationOptions().options() == Options(slots=1, prefix_store=AUTO)


def test_options_that_are_not_set_are_left_open() -> None:
    assert EngineOptions().options() == Options(slots=1)


def test_options_that_are_set_are_passed_on() -> None:
    result = EngineOptions(kv_budget=7, kv_recent="50%", kv_elastic=False, prompt_tokens=9, slots=3, dtype="float32")
    wanted = Options(kv_budget=7, kv_recent="50%", kv_elastic=False, prompt_tokens=9, slots=3, dtype="float32")
    assert result.options(slots=8) == wanted


def test_a_command_has_its_own_default_for_slots() -> None:
    assert EngineOptions().options(slots=8).slots == 8


def test_sampling_without_options_is_the_default_sampling() -> None:
    assert Sampling().params() == SamplingParams()


def test_stop_strings_arrive_in_order() -> None:
    assert Sampling(stop=["b", "a"]).params().stop == ("b", "a")


def test_a_sampling_option_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="top_p is 2"):
        Sampling(top_p=2.0).params()
