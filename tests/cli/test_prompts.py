import io
from pathlib import Path

import pytest

from ringkv.base.errors import EmptyPrompt, InvalidRequest
from ringkv.cli.prompts import read_prompt
from tests.refusals import refusal


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_the_document_comes_before_the_question(tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_text("A long text.", encoding="utf-8")
    assert read_prompt("Why?", None, str(tmp_path / "big.txt")) == "A long text.\n\nWhy?"


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, "Grüße\n".encode())
    assert read_prompt(None, "-", None) == "Grüße\n"


def test_a_document_alone_is_kept_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("def f():\n", encoding="utf-8")
    assert read_prompt(None, None, str(tmp_path / "code.py")) == "def f():\n"


@pytest.mark.parametrize("question", [None, "", " \n"])
def test_an_empty_prompt_is_refused(question: str | None) -> None:
    with pytest.raises(EmptyPrompt, match="--prompt-file"):
        read_prompt(question, None, None)


def test_two_documents_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="leave one out"):
        read_prompt("Why?", "text", "file")


def test_a_missing_file_is_named() -> None:
    with refusal("prompt", "nowhere.txt"):
        read_prompt("Why?", None, "nowhere.txt")


def test_a_folder_is_not_a_text_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_prompt("Why?", None, str(tmp_path))


def test_bytes_that_are_not_utf_8_are_named_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, b"ok \xff")
    with refusal("prompt", "byte 3 is 0xff"):
        read_prompt(None, "-", None)
