"""Nothing in a request is an address or a path."""

import socket
from collections.abc import Iterator

import pytest

from tests.server.conftest import Served


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as it:
        it.settimeout(0.2)
        yield it


def test_no_url_of_a_request_is_fetched(served: Served, listener: socket.socket) -> None:
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/it"
    parts = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "input_audio", "input_audio": {"url": url}},
        {"type": "file", "file": {"file_id": url}},
    ]
    for part in parts:
        messages = [{"role": "user", "content": [part]}]
        assert served.post("chat/completions", messages=messages).status_code == 400
    remote = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": url}}}
    hi = [{"role": "user", "content": url}]
    assert served.post("chat/completions", messages=hi, response_format=remote).status_code == 400
    assert served.post("chat/completions", messages=hi).status_code == 200
    with pytest.raises(TimeoutError):
        listener.accept()


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..%2f..%2fetc%2fpasswd", "file:///etc/passwd"])
def test_a_models_name_is_never_a_path(served: Served, name: str) -> None:
    assert served.http.get(f"/v1/models/{name.replace('../', '%2e%2e/')}").json()["error"]["code"] == "model_not_found"
    got = served.post("completions", model=name, prompt="a")
    assert (got.status_code, got.json()["error"]["code"]) == (404, "model_not_found")
    assert "root:" not in got.text
