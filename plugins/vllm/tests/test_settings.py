"""What a server and a request may set, and the command that is printed."""

import json
from typing import Any

import pytest
from ringkv_vllm.cli import serve_command
from ringkv_vllm.settings import read

from ringkv.base.errors import InvalidRequest

SERVER = {"kv_budget": 96, "kv_recent": 24, "kv_window": 8}


def test_without_settings_the_plug_in_does_nothing() -> None:
    assert read(None) is None
    assert read({}) is None
    assert read({"other": 1}) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "kv_budget is missing"),
        ({"kv_budget": 4}, "kv_budget 4 is less than"),
        (
            {"kv_budget": 96, "kv_policy": "full"},
            "kv_policy full is not for vLLM's blocks; choose snapstream or streaming",
        ),
        ({"kv_budget": 96, "kv_select": "kvzip"}, "prefills a prompt twice"),
        ({"kv_budget": 96, "budget": 1}, "budget is not a setting of ringkv in vLLM"),
        ({"kv_budget": 96, "kv_turns": "continue"}, "kv_turns is not a setting"),
    ],
)
def test_settings_that_cannot_be_served_are_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        read({"ringkv": given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kv_budget": 97}, "kv_budget 97 is over the server's 96"),
        ({"kv_policy": "full"}, "start the server with"),
        ({"kv_policy": "arkvale"}, "choose snapstream or streaming"),
        ({"kv_sinks": 1}, "kv_sinks is set when the server starts"),
    ],
)
def test_requests_that_ask_for_more_are_refused_and_get_the_servers_choice_if_nobody_checked(
    given: dict[str, Any], said: str
) -> None:
    settings = read({"ringkv": SERVER})
    assert settings is not None
    with pytest.raises(InvalidRequest, match=said):
        settings.of_request(given)
    assert settings.of_admitted(given) == settings.choice


def test_a_request_may_keep_less_or_everything_if_it_is_allowed() -> None:
    settings = read({"ringkv": SERVER | {"allow_full": True}})
    assert settings is not None
    smaller = settings.of_request({"kv_budget": 64, "other": 1})
    assert smaller is not None
    assert (smaller.budget, smaller.select) == (64, settings.choice.select)
    assert settings.of_request({"kv_policy": "full"}) is None
    assert settings.of_request(None) == settings.choice


def test_the_command_has_vllms_flags_and_passes_others_on() -> None:
    given = [
        "serve",
        "model",
        "--kv-budget",
        "96",
        "--kv-select",
        "tova",
        "--allow-full",
        "--port",
        "1",
        "--dtype",
        "half",
    ]
    command = serve_command(given)
    config = json.loads(command[command.index("--additional-config") + 1])
    assert config == {"ringkv": {"kv_budget": 96, "kv_select": "tova", "allow_full": True}}
    assert command[:2] == ["serve", "model"]
    assert command[-4:] == ["--port", "1", "--dtype", "half"]
    with pytest.raises(InvalidRequest, match="kv_budget 1 is less than"):
        serve_command(["serve", "model", "--kv-budget", "1"])
