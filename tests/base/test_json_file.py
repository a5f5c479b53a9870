"""A model's JSON file is read within bounds, and refused in one sentence that names it."""

import json
from pathlib import Path

import pytest

from ringkv.base import json_file
from ringkv.base.errors import BadWeights
from ringkv.base.json_file import DEEPEST, read_object
from ringkv.base.shown import one_line, shown, shown_names


def nested(depth: int) -> str:
    return '{"a": ' * depth + "1" + "}" * depth


def test_an_ordinary_file_is_what_json_reads(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(nested(DEEPEST))
    assert read_object(tmp_path / "x.json") == json.loads(nested(DEEPEST))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (nested(DEEPEST + 1), "nested more than 64 deep"),
        (nested(100_000), "nested more than 64 deep"),
        ("[" * 500 + "]" * 500, "holds a list"),
        ('{"a": ' + "9" * 10_000 + "}", "not valid JSON"),
        ('{"a": 1', "not valid JSON"),
        ("7", "holds a int"),
        ("\xff\xfe\x00", "not valid JSON"),
    ],
)
def test_other_files_are_refused_by_name(content: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(content, encoding="latin-1")
    with pytest.raises(BadWeights, match=rf"x\.json.*{named}.*fetch it again") as refused:
        read_object(tmp_path / "x.json")
    assert "\n" not in str(refused.value)


def test_a_file_that_is_too_large_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "x.json").open("wb") as file:
        file.truncate(json_file.LARGEST + 1)
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("it was read"))
    with pytest.raises(BadWeights, match="67,108,865 bytes"):
        read_object(tmp_path / "x.json")


def test_foreign_values_are_short_lines_of_ascii() -> None:
    assert shown("é\n") == "'\\xe9\\n'"
    assert len(shown(["x" * 10_000] * 9)) == len(shown("x" * 10**6)) == 60
    assert shown_names(["model.norm.weight", "a b", *"cdefg"]) == "model.norm.weight, 'a b', c, d, e, ..."
    assert one_line(ValueError("one\n  two\x1b[0m")) == "one two\\x1b[0m"
