"""`ringkv serve --role prefill` and `--role decode`, as an operator starts them."""

import json
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from ringkv.cli.roles import RoleOptions
from ringkv.plan.options import Options
from ringkv.wire.handshake import KEY
from tests.cli.commands.test_serve import serving
from tests.cli.conftest import SMALL, Cli
from tests.cli.test_torchrun import variables

BODY = {"prompt": "a story", "max_tokens": 5, "temperature": 0, "ignore_eos": True}


def address_in(stream: "IO[str] | None", pattern: str) -> str:
    assert stream is not None
    return next(found[1] for line in stream if (found := re.search(pattern, line)))


def complete(url: str, **changes: object) -> dict:
    body = json.dumps(BODY | changes).encode()
    with urlopen(Request(f"{url}/completions", body, {"Content-Type": "application/json"})) as response:
        return json.load(response)


@pytest.mark.slow
def test_a_decode_server_answers_with_the_text_of_one_engine_and_503_without_its_prefill_worker(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "a secret of 24 characters")
    model = ("--model", str(model_dir))
    with serving(*model) as both:
        url = address_in(both.stdout, r"(http://127.0.0.1:\d+/v1)")
        expected = [choice["text"] for choice in complete(url, n=2)["choices"]]
    with serving(*model, "--role", "prefill", "--listen", "127.0.0.1:0") as prefill:
        at = address_in(prefill.stdout, r"listening for decode workers at (127.0.0.1:\d+);")
        with serving(*model, "--role", "decode", "--prefill", at) as decode:
            url = address_in(decode.stdout, r"(http://127.0.0.1:\d+/v1)")
            found = complete(url, n=2)
            assert [choice["text"] for choice in found["choices"]] == expected
            assert found["usage"]["completion_tokens"] == 10
            prefill.send_signal(signal.SIGTERM)
            assert prefill.wait(20) == 0
            assert prefill.stdout is not None
            assert prefill.stdout.read() == "stopped\n"
            with pytest.raises(HTTPError) as refused:
                complete(url)
            assert (refused.value.code, json.load(refused.value)["error"]["code"]) == (503, "prefill_unavailable")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--role", "other"), "--role is 'other'; it must be one of both, prefill, decode"),
        (("--role", "decode"), "--role decode has no prefill worker; give --prefill HOST:PORT"),
        (("--prefill", "127.0.0.1:1"), "--prefill is for --role decode"),
        (("--listen", "127.0.0.1:1"), "--listen is for --role prefill"),
        (("--role", "prefill", "--listen", "here"), "--listen is 'here'; give HOST:PORT"),
        (("--role", "decode", "--prefill", "a:1,b"), "--prefill is 'b'; give HOST:PORT"),
        (("--role", "prefill", "--model", "another"), "--role prefill serves one model and 2 are given"),
        (("--role", "prefill", "--nnodes", "2"), "--role prefill runs on one machine; leave out --nnodes"),
        (("--role", "prefill", "--port", "9000"), "--role prefill has no HTTP; give --listen, not --host or --port"),
        (("--role", "prefill", "--port", "8000"), "--role prefill has no HTTP"),
        (("--role", "prefill", "--host", "0.0.0.0"), "--role prefill has no HTTP"),
        (("--role", "prefill", "--port", "0"), "RINGKV_RANKS_KEY is not set"),
        (("--role", "prefill"), "RINGKV_RANKS_KEY is not set; set it to the same secret of at least 16 bytes"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(
    options: tuple[str, ...], problem: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY, raising=False)
    result = cli("serve", "--model", "/nowhere/model", *SMALL, *options)
    assert result.status == 2
    assert problem in result.last_line


def test_a_role_is_refused_on_the_machines_of_torchrun(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables(0, 2, 0, 1).items():
        monkeypatch.setenv(name, value)
    result = cli("serve", "--model", "/nowhere/model", *SMALL, "--role", "prefill")
    assert (result.status, "--role prefill" in result.last_line) == (2, True)


@pytest.mark.parametrize(("role", "policy"), [("both", "auto"), ("prefill", "snapstream"), ("decode", "snapstream")])
def test_auto_reads_no_pages_if_prefill_is_apart_from_decode(role: str, policy: str) -> None:
    asked = Options(kv_policy="auto", kv_budget=1024)
    assert RoleOptions(role=role, prefill="localhost:7070").adapted(asked).kv_policy == policy
    for other in ({"kv_budget": None}, {"kv_tier": "memory"}):  # full; asks for pages
        assert RoleOptions(role=role).adapted(replace(asked, **other)).kv_policy == "auto"
