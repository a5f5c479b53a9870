from pathlib import Path

import pytest

from ringkv.base.errors import BadWeights
from ringkv.text.files import read_json, write_atomically


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"null"])
def test_a_file_that_is_not_a_json_object_is_named(tmp_path: Path, content: bytes):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(BadWeights, match=r"config\.json"):
        read_json(tmp_path / "config.json")


def test_a_missing_file_reads_as_empty(tmp_path: Path):
    assert read_json(tmp_path / "config.json") == {}


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
