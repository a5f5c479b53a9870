"""Options are checked before a model is downloaded."""

import json
from pathlib import Path

import pytest

from ringkv.base.errors import PullFailed
from tests.cli.conftest import Cli

MODEL = "organisation/model"  # of the hub, so that only a download finds it
COMMANDS = {
    "generate": ["generate", "--model", MODEL, "Why?"],
    "chat": ["chat", MODEL],
    "serve": ["serve", MODEL],
    "compare": ["compare", "text.txt", "Why?", "--model", MODEL],
    "demo": ["demo", MODEL],
    "bench": ["bench", MODEL],
    "eval": ["eval", MODEL],
    "profile": ["profile", MODEL],
    "rotate": ["rotate", MODEL, "out"],
}
ENGINES = ("generate", "chat", "serve", "bench")
STORES = ("chat", "serve")


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The models that were downloaded; each download fails."""
    found: list[str] = []

    def download(model: str, *_: object) -> Path:
        found.append(model)
        raise PullFailed("there is no network")

    monkeypatch.setattr("ringkv.residency.locate.from_hub", download)
    monkeypatch.setattr("ringkv.evaluation.needed.find_spec", lambda name: name)  # no package is missing
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("a text")
    Path("prompts.jsonl").write_text(json.dumps({"prompt": "a text"}) + "\nnot JSON\n")
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_valid_options_lead_to_the_download(command: str, cli: Cli, downloads: list[str]) -> None:
    result = cli(*COMMANDS[command])
    assert (result.status, downloads) == (1, [MODEL])
    assert result.last_line == "ringkv: there is no network"


@pytest.mark.parametrize(
    ("commands", "options", "message"),
    [
        (ENGINES, "--kv-policy snapstreem", "--kv-policy is 'snapstreem'; it must be one of full"),
        (ENGINES, "--kv-budget 4", "--kv-budget 4 is less than 4 sinks and 1 recent; raise it to 5"),
        (ENGINES, "--kv-compression 4y", "--kv-compression is '4y'"),
        (ENGINES, "--kv-budget 9 --kv-compression 4x", "--kv-budget 9 and --kv-compression 4x both set the budget"),
        (ENGINES, "--kv-page 7 --kv-policy arkvale", "--kv-page is 7; it must be one of 32, 16"),
        (ENGINES, "--kv-tier nowhere --kv-policy arkvale", "--kv-tier nowhere is not a directory"),
        (ENGINES, "--kv-format zipcache --speculate 2", "--speculate 2 is not implemented with --kv-format zipcache"),
        (ENGINES, "--kv-heads profile --kv-profile nowhere", "--kv-profile nowhere does not exist"),
        (ENGINES, "--slots 0", "--slots is 0; it must be at least 1"),
        (ENGINES, "--max-prompt 0", "--max-prompt is 0; it must be at least 1"),
        (STORES, "--prefix-store much", "--prefix-store is 'much'; write bytes"),
        (STORES, "--kv-turns never", "--kv-turns is 'never'; it must be one of reread, continue"),
        (("serve",), "--tensor-parallel 2 --nnodes 3", "--nnodes is 3; it must divide --tensor-parallel, 2"),
        (("serve",), "--expert-parallel", "--expert-parallel needs several ranks"),
        (("serve",), "--max-body long", "--max-body is 'long'; write bytes"),
        (("serve",), "--tls-cert nowhere", "nowhere"),
        ((*ENGINES, "compare", "demo", "eval", "profile"), "--dtype float8", "--dtype is 'float8'; it must be one of"),
        ((*ENGINES, "compare", "demo", "eval", "profile"), "--weights int5", "--weights is 'int5'; it must be one of"),
        ((*ENGINES, "compare", "demo", "eval", "profile"), "--device cpu:3", "--device 'cpu:3' is unknown"),
        ((*ENGINES, "compare", "demo", "eval"), "--graphs never", "--graphs is 'never'; it must be one of auto"),
        ((*ENGINES, "compare", "demo", "eval"), "--kv-recent 200%", "--kv-recent is '200%'; write a share"),
        ((*ENGINES, "compare", "demo", "eval"), "--kv-select none", "--kv-select is 'none'; it must be one of"),
        (("generate", "chat"), "--temperature -1", "--temperature is -1.0; it must be 0 or more"),
        (("generate",), "--prompt-file nowhere", "nowhere cannot be read"),
        (("generate",), "--raw --system Short.", "--system needs a chat template"),
        (("chat",), "--prompt-file nowhere", "nowhere cannot be read"),
        (("compare",), "--policies magic", "--policies is 'magic'; it must be one of full"),
        (("compare", "eval"), "--budgets 2y", "budget '2y' is neither a share of the prompt"),
        (("bench",), "--kv-policy full", "--kv-policy full is the baseline of the comparison"),
        (("bench",), "--output-tokens 1", "--output-tokens is 1; it must be at least 2"),
        (("eval",), "--tasks magic", "there is no task 'magic'"),
        (("eval",), "--policies magic", "policies is 'magic'; it must be one of full"),
        (("eval",), "--lengths 10", "lengths is 10; it must be at least 256"),
        (("eval",), "--count 0", "count is 0; it must be at least 1"),
        (("eval",), "--data nowhere", "invalid value for '--data': dir 'nowhere' does not exist"),
        (("eval",), "--prompts prompts.jsonl", "prompt 2 is invalid"),
        (("eval",), "--prompts prompts.jsonl --advise", "prompt 2 is invalid"),
        (("profile",), "--text nowhere", "nowhere cannot be read"),
        (("rotate",), "--calibration nowhere", "nowhere cannot be read"),
        (("rotate",), "--weights int5", "--weights is 'int5'"),
    ],
)
def test_an_invalid_option_is_refused_without_a_download(
    commands: tuple[str, ...], options: str, message: str, cli: Cli, downloads: list[str]
) -> None:
    for command in commands:
        result = cli(*COMMANDS[command], *options.split())
        assert (command, downloads) == (command, [])
        assert result.status == 2
        assert message.lower() in result.last_line.lower()


def test_lines_of_prompts_are_checked_before_packages(
    cli: Cli, downloads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringkv.evaluation.needed.find_spec", lambda name: None)
    result = cli(*COMMANDS["eval"], "--prompts", "prompts.jsonl")
    assert result.last_line.startswith("ringkv: prompt 2 is invalid")
    assert downloads == []


def test_every_model_is_known_before_one_is_downloaded(cli: Cli, downloads: list[str]) -> None:
    result = cli("serve", MODEL, "smollm3")
    assert (result.status != 0, downloads) == (True, [])
    assert "no model 'smollm3'" in result.last_line
