"""Keys are read from files and from the environment, which is emptied; a wrong line is named."""

from hashlib import sha256
from pathlib import Path

import pytest

from ringkv.base.errors import InvalidRequest
from ringkv.server.key_files import read_keys
from tests.refusals import refusal
from tests.server.protocol.test_keys import ALICE, BOB


def test_files_and_environment_are_read_and_the_environment_is_emptied(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# ours\n\n  alice : {ALICE}\nbob:sha256:{sha256(BOB.encode()).hexdigest().upper()}\n")
    environment = {
        "RINGKV_API_KEY": "one-key-for-the-rest",
        "RINGKV_API_KEYS": "a:0123456789abcdef,\nb:fedcba9876543210",
        "X": "",
    }
    found = read_keys([file], environment)
    assert [key.label for key in found] == ["alice", "bob", "a", "b", "default"]
    assert found[1].digest == sha256(BOB.encode()).digest()
    assert environment == {"X": ""}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "contains no API key"),
        ("# nothing\n", "contains no API key"),
        (f"\n{ALICE}\n", "line 2 is not an API key"),
        (f":{ALICE}", "line 1 is not an API key"),
        (f"a b:{ALICE}", "line 1 is not an API key"),
        ("alice:", "line 1 is not an API key"),
        ("alice:tiny-secret", "at least 16"),
        ("alice:secret with spaces in it", "at least 16"),
        ("alice:sha256:beef", "4 characters"),
        (f"alice:{ALICE}\nbob:{ALICE}", "alice and bob have the same"),
    ],
)
def test_a_wrong_line_is_named_and_its_key_is_not_shown(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=problem) as caught:
        read_keys([file], {})
    assert ALICE not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_missing_file_is_an_error_and_not_an_open_server(tmp_path: Path) -> None:
    with refusal("api_keys", "nowhere"):
        read_keys([tmp_path / "nowhere"], {})
