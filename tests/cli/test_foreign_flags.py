"""Flags that users of vLLM and llama.cpp try are answered with ours."""

from typing import Any

import pytest
import typer

from ringkv.cli.application import app
from ringkv.cli.foreign_flags import HINTS, flags_in
from tests.cli.conftest import Cli

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def flags(command: str) -> set[str]:
    return {name for one in COMMANDS[command].params for name in (*one.opts, *one.secondary_opts)}


@pytest.mark.parametrize(
    ("command", "given", "answer"),
    [
        ("serve", ["--max-model-len", "4096"], "--max-model-len; --max-prompt TOKENS is the longest prompt;"),
        ("serve", ["--max-num-seqs=4"], "--max-num-seqs; --slots N is the number of concurrent requests;"),
        ("serve", ["--gpu-memory-utilization", "0.9"], "--gpu-memory-utilization; --slots and --kv-budget set"),
        ("serve", ["-c", "4096"], "-c; --max-prompt TOKENS is the longest prompt;"),
        ("serve", ["-m", "smollm2", "-ngl", "99"], "-ngl; --device cuda:0 puts all layers on a GPU;"),
        ("serve", ["-np", "4"], "-np; --slots N is the number of concurrent requests;"),
        ("serve", ["-hf", "a/b"], "-hf; --model NAME takes a hub id too;"),
        ("serve", ["-dp", "2"], "-dp; --attention-parallel slots divides latent attention by requests;"),
        ("generate", ["-n", "20", "hello"], "-n; --max-tokens N is the longest output;"),
        ("plan", ["--slots", "8"], "--slots; --memory BYTES shows how many slots fit;"),
        ("plan", ["--nnodes", "2"], "--nnodes; --tensor-parallel N is the number of ranks on all machines;"),
        ("plan", ["--expert-parallel"], "--expert-parallel; --tensor-parallel N also shows ranks with whole experts;"),
        ("plan", ["--max-model-len", "4096"], "--max-model-len; --tokens COUNT is the longest prompt plus output;"),
    ],
)
def test_a_flag_of_another_engine_is_answered_with_a_flag_of_the_command(
    command: str, given: list[str], answer: str, cli: Cli
) -> None:
    result = cli(command, *given)
    assert (result.status, result.out) == (2, "")
    (line,) = result.err.splitlines()
    assert line.startswith(f"ringkv: no such option: {answer}")
    assert line.endswith(f"; see ringkv {command} --help")


def test_a_flag_without_a_counterpart_in_the_command_gets_no_hint(cli: Cli) -> None:
    line = "ringkv: no such option: --enable-prefix-caching; see ringkv bench --help\n"
    assert cli("bench", "--enable-prefix-caching").err == line


@pytest.mark.parametrize(("text", "foreign"), HINTS.items())
def test_every_hint_is_the_answer_of_a_command_that_has_its_flags(text: str, foreign: str, cli: Cli) -> None:
    able = [command for command in COMMANDS if flags_in(text) <= flags(command)]
    for one in foreign.split():
        assert any(f"{one}; {text}; see" in cli(command, one).err for command in able if one not in flags(command))
