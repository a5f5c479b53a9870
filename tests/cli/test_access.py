"""Who may send requests, as options and environment."""

import re
from pathlib import Path

import pytest

from ringkv.base.errors import InvalidRequest
from ringkv.cli.access import AccessOptions
from tests.cli.conftest import SMALL, Cli

KEY = "a-key-of-our-own-0123"


def test_options_become_the_servers_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").write_text(f"alice:{KEY}\n")
    monkeypatch.setenv("RINGKV_API_KEY", "another-key-0123456")
    options = AccessOptions(
        [tmp_path / "keys"], rate_limit=9, allowed_host=["box.lan"], max_body="2MiB", client_timeout=7
    )
    edge = options.edge()
    assert [key.label for key in edge.keys] == ["alice", "default"]
    access = edge.access("127.0.0.1", longest_prompt=512)
    assert (access.per_minute, access.hosts, access.keys.shares_prefixes) == (9, {"box.lan"}, False)
    assert (access.bodies.largest, access.bodies.seconds, edge.connections().seconds) == (2 << 20, 7, 7)
    assert AccessOptions().edge().keys == ()  # the variable was taken out of the environment


def test_only_an_open_server_on_other_addresses_warns(caplog: pytest.LogCaptureFixture) -> None:
    edge = AccessOptions().edge()
    edge.warn_if_open("127.0.0.1")
    assert caplog.text == ""
    edge.warn_if_open("0.0.0.0")
    assert "anybody who reaches 0.0.0.0" in caplog.text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--api-keys", "/nowhere/keys"), "cannot read API keys from /nowhere/keys"),
        (("--tls-key", "/nowhere/key"), "--tls-key needs --tls-cert"),
        (("--tls-cert", "/nowhere/cert"), "/nowhere/cert cannot be used for TLS (No such file or directory)"),
        (("--tls-cert", __file__), "cannot be used for TLS"),
        (("--max-body", "much"), "--max-body is 'much'"),
    ],
)
def test_a_wrong_option_is_refused_before_the_model_is_loaded(cli: Cli, options: tuple[str, str], problem: str) -> None:
    result = cli("serve", "--model", "/nowhere/model", *SMALL, *options)
    assert result.status == 2
    assert problem in result.last_line


def test_a_key_is_never_an_argument(cli: Cli) -> None:
    result = cli("serve", "--model", "/nowhere/model", *SMALL, "--api-key", KEY)
    assert result.status == 2
    assert KEY not in result.err


def test_an_encrypted_key_is_refused_without_asking_for_its_password(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
    with pytest.raises(InvalidRequest, match="without password"):
        AccessOptions(tls_cert=key, tls_key=key).edge()


def test_help_shows_these_options_in_a_panel_of_their_own(cli: Cli) -> None:
    help_ = cli("serve", "--help").out
    _, _, rest = help_.partition("─ Access ─")
    panel = rest.partition("╰")[0]
    assert re.findall(r"--[a-z-]+", panel)[:1] == ["--api-keys"]
    assert {"--rate-limit", "--tls-cert", "--max-body", "--client-timeout"} <= set(re.findall(r"--[a-z-]+", panel))
    assert "--kv-window" not in panel
