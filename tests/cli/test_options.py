from dataclasses import fields
from typing import Any, get_args

import typer
from typer.testing import CliRunner

from ringkv.base.sampling import SamplingParams
from ringkv.cli.options import ConversationOptions, EngineOptions, Sampling, ServingOptions
from ringkv.cli.spread import spread
from ringkv.plan.options import Options

RANKS = {"tensor_parallel", "expert_parallel", "attention_parallel"} | {
    "nnodes",
    "node_rank",
    "master_addr",
    "master_port",
}


def names(group: Any) -> set[str]:
    _, flags = get_args(group)
    return set(flags)


def sampled(*arguments: str) -> SamplingParams | str:
    """Return the parameters that a command line sets, or the error's text."""
    made: list[SamplingParams] = []

    def command(*, sampling: Sampling) -> None:
        made.append(sampling)

    app = typer.Typer()
    app.command()(spread(command))
    ended = CliRunner().invoke(app, arguments)
    return str(ended.exception) if ended.exit_code else made[0]


def test_every_engine_option_has_a_flag_except_two_for_programs() -> None:
    assert {one.name for one in fields(Options)} - names(ServingOptions) == {"chunk", "lanes"}
    assert names(ServingOptions) - names(ConversationOptions) == {"max_step"} | RANKS


def test_only_conversations_have_a_prefix_store_and_turns() -> None:
    assert names(ConversationOptions) - names(EngineOptions) == {"kv_turns", "prefix_store"}


def test_a_command_fills_in_what_is_left_open() -> None:
    assert Options().filled(slots=8, kv_budget=None) == Options(slots=8)
    assert Options(slots=0).filled(slots=8) == Options(slots=0)


def test_sampling_without_options_is_the_default_sampling() -> None:
    assert sampled() == SamplingParams()


def test_stop_strings_arrive_in_order() -> None:
    assert sampled("--stop", "b", "--stop", "a") == SamplingParams(stop=("b", "a"))


def test_a_sampling_option_out_of_range_is_refused() -> None:
    assert "top_p is 2" in str(sampled("--top-p", "2"))
