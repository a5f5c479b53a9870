"""Options of `ringkv serve` from a file and from the environment, for every option that the command has."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from ringkv.cli.application import app
from tests.cli.conftest import Cli

SERVE: Any = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
OPTIONS = {max(one.opts, key=len)[2:]: one for one in SERVE.params if not one.is_eager}
CANDIDATES = ("7", "text", "json", "/some/path", "1GB")

Parsed = Callable[..., dict[str, Any]]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Parsed:
    """Run `ringkv serve` up to the point where the command gets its options, and return these."""
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(SERVE, "callback", lambda **given: seen.append(given))

    def call(*arguments: str) -> dict[str, Any]:
        SERVE.main([*arguments], prog_name="serve", standalone_mode=False)
        return {name: value for name, value in seen[-1].items() if name != "config_file"}

    return call


def variable(option: str) -> str:
    return "RINGKV_SERVE_" + option.upper().replace("-", "_")


def typed(option: str, parsed: Parsed) -> tuple[str, str, dict[str, Any]]:
    """Return a value as the file and as the environment write it, and what the command line makes of it."""
    if OPTIONS[option].is_flag:
        return "true", "true", parsed(f"--{option}")
    for value in CANDIDATES:
        try:
            found = parsed(f"--{option}", value)
        except Exception:
            continue
        return value if value.isdigit() else json.dumps(value), value, found
    raise AssertionError(f"no candidate suits --{option}")


@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_is_the_same_from_the_file_the_environment_and_the_command_line(
    option: str, parsed: Parsed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_file, in_environment, wanted = typed(option, parsed)
    file = tmp_path / "it.toml"
    for key in {option, option.replace("-", "_")}:
        file.write_text(f"{key} = {in_file}\n")
        assert parsed("--config", str(file)) == wanted
    monkeypatch.setenv(variable(option), in_environment)
    assert parsed() == wanted
    monkeypatch.delenv(variable(option))
    if not OPTIONS[option].is_flag or "true" not in str(OPTIONS[option].default).lower():
        assert parsed() != wanted or in_environment == str(OPTIONS[option].default)


def test_the_command_line_comes_before_the_environment_and_that_before_the_file(
    parsed: Parsed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "it.toml").write_text('port = 1\nhost = "::1"\nslots = 3\n')
    monkeypatch.setenv("RINGKV_SERVE_CONFIG", str(file))
    monkeypatch.setenv("RINGKV_SERVE_PORT", "2")
    monkeypatch.setenv("RINGKV_SERVE_SLOTS", "")  # empty counts as absent
    assert [parsed()[name] for name in ("port", "host", "slots")] == [2, "::1", 3]
    assert parsed("--port", "4")["port"] == 4


def test_flags_can_be_switched_off_and_lists_have_several_values(
    parsed: Parsed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "it.toml").write_text(
        'request-log = false\nkv_elastic = false\nallow-origin = ["http://a", "http://b"]\nkv-recent = 0.25'
    )
    got = parsed("--config", str(file))
    assert [got[name] for name in ("request_log", "kv_elastic", "kv_recent")] == [False, False, "0.25"]
    assert list(got["allow_origin"]) == ["http://a", "http://b"]
    monkeypatch.setenv("RINGKV_SERVE_ALLOW_ORIGIN", "http://c http://d")
    monkeypatch.setenv("RINGKV_SERVE_REQUEST_LOG", "1")
    got = parsed("--config", str(file))
    assert (list(got["allow_origin"]), got["request_log"]) == (["http://c", "http://d"], True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "FILE: there is no option prot; did you mean port?"),
        ("prompt_tokens = 1", "FILE: there is no option prompt_tokens; did you mean max-prompt?"),
        ("kv-paper-layout = true", "FILE: there is no option kv-paper-layout; did you mean kv-elastic = false?"),
        ("max_model_len = 1", "FILE: there is no option max_model_len; --max-prompt TOKENS is the longest prompt"),
        ("xyzzy = 1", "FILE: there is no option xyzzy; `ringkv serve --help` lists the options"),
        ('config = "x"', "FILE: there is no option config;"),
        ('port = "many"', "FILE: port is 'many'; give a whole number"),
        ("slots = 2.5", "FILE: slots is 2.5; give a whole number"),
        ("slots = true", "FILE: slots is True; give a number or a text"),
        ("host = [1, 2]", "FILE: host is [1, 2]; give a number or a text"),
        ("request-log = 1", "FILE: request-log is 1; give true or false"),
        ("[engine]\nslots = 1", "FILE: there is no option engine;"),
        ("[slots]\nn = 1", "FILE: slots is {'n': 1}; give a number or a text"),
        ("max_prompt = 1\nmax-prompt = 2", "FILE: max_prompt and max-prompt are the same option; leave one out"),
        ("port 1", "FILE is not valid TOML: "),
    ],
)
def test_a_mistake_in_the_file_is_named_with_file_key_and_value(
    text: str, message: str, cli: Cli, tmp_path: Path
) -> None:
    (file := tmp_path / "it.toml").write_text(text)
    result = cli("serve", "--config", file)
    assert result.status == 2
    assert result.err.startswith(f"ringkv: {message.replace('FILE', str(file))}")


def test_a_file_that_is_not_there_is_refused(cli: Cli, tmp_path: Path) -> None:
    result = cli("serve", "--config", tmp_path / "none.toml")
    assert (result.status, "cannot read" in result.err, "No such file" in result.err) == (2, True, True)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RINGKV_SERVE_PROT", "1", "environment: there is no option RINGKV_SERVE_PROT; did you mean port?"),
        ("RINGKV_SERVE_PORT", "x", "environment: RINGKV_SERVE_PORT is 'x'; give a whole number"),
    ],
)
def test_a_mistake_in_the_environment_is_named_with_the_variable(
    name: str, value: str, message: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert cli("serve") == (2, "", f"ringkv: {message}\n")


def test_other_commands_ignore_the_environment_of_serve(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGKV_SERVE_PROT", "1")
    assert cli("models", "--json").status == 0


def test_the_panel_of_serve_names_the_file_and_the_environment(cli: Cli) -> None:
    words = "".join(cli("serve", "--help").out.replace("│", "").split())
    assert "--configFILE" in words
    assert "RINGKV_SERVE_PORT" in words
