"""The Host header against DNS rebinding."""

import pytest

from ringkv.base.errors import WrongHost
from ringkv.server.protocol.guard import Access, accepted_hosts, check_host
from ringkv.text.tokenizer import Tokenizer
from tests.server.conftest import serving
from tests.server.echo import channel


def is_served(host: str, bound: str, *extra: str, reached: str = "127.0.0.1") -> bool:
    scope = {"headers": [(b"host", host.encode())] if host else [], "server": (reached, 8000)}
    try:
        check_host(scope, accepted_hosts(bound, extra))
    except WrongHost:
        return False
    return True


@pytest.mark.parametrize("bound", ["127.0.0.1", "::1", "localhost", "127.0.0.2"])
@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000", "[::1]", "localhost."])
def test_a_server_on_loopback_answers_to_this_machines_names(bound: str, host: str) -> None:
    assert is_served(host, bound)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "", "10.0.0.1", "["],
)
def test_a_server_on_loopback_answers_to_no_other_name(host: str) -> None:
    assert not is_served(host, "127.0.0.1")


def test_a_name_that_the_user_allows_is_served() -> None:
    assert is_served("Box.lan:8000", "127.0.0.1", "box.LAN")
    assert not is_served("other.lan", "127.0.0.1", "box.lan")
    assert is_served("anything", "127.0.0.1", "*")


def test_a_server_on_all_interfaces_answers_to_any_name_unless_some_are_given() -> None:
    assert is_served("anything", "0.0.0.0")
    assert is_served("box.lan", "0.0.0.0", "box.lan")
    assert is_served("10.0.0.7:80", "0.0.0.0", "box.lan", reached="10.0.0.7")
    assert is_served("localhost", "0.0.0.0", "box.lan")
    assert not is_served("anything", "0.0.0.0", "box.lan")


def test_a_foreign_host_gets_421_before_anything_is_answered(tokenizer: Tokenizer) -> None:
    with serving(channel(), tokenizer, None, access=Access(hosts=accepted_hosts("127.0.0.1"))) as served:
        assert served.http.get("/health").status_code == 200
        for path in ("/health", "/v1/models"):
            answer = served.http.get(path, headers={"host": "evil.example"})
            assert answer.status_code == 421
            assert "--allowed-host" in answer.json()["error"]["message"]
