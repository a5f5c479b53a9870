from pathlib import Path
from pydoc_data.topics import topics

import pytest

from ringkv.base.errors import InvalidRequest
from ringkv.cli.document import CHAPTERS, manual, read_windows
from ringkv.text.tokenizer import Tokenizer


def words(text: str) -> int:
    return len(text.split())


def test_the_text_is_as_long_as_requested_to_a_paragraph() -> None:
    assert 1800 < words(manual(2000, words)) <= 2000


def test_there_is_enough_of_it_for_a_long_context() -> None:
    assert words(manual(12_000, words)) > 11_500


def test_it_is_the_manuals_own_text_from_its_beginning() -> None:
    assert topics[CHAPTERS[0]].startswith(manual(200, words))


TEXT = bytes(range(97, 122)).decode("ascii")  # 25 tokens of the tiny model, which are bytes


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def tokens(letters: str, model_dir: Path) -> list[int]:
    return list(Tokenizer.from_directory(model_dir).encode(letters, add_special_tokens=False))


@pytest.mark.parametrize(
    ("limit", "size", "windows"),
    [
        (99, 10, ["abcdefghij", "klmnopqrst"]),
        (19, 10, ["abcdefghij"]),
        (25, 25, [TEXT]),
    ],
)
def test_windows_are_the_first_tokens_without_an_incomplete_one(
    limit: int, size: int, windows: list[str], text: Path, model_dir: Path
) -> None:
    found = read_windows(model_dir, text, limit, size)
    assert found == [tokens(window, model_dir) for window in windows]


def test_without_a_text_they_are_from_pythons_manual(model_dir: Path) -> None:
    whole = tokens(manual(4000, len), model_dir)
    assert read_windows(model_dir, None, 1500, 512) == [whole[:512], whole[512:1024]]


@pytest.mark.parametrize(
    ("limit", "size", "message"),
    [
        (99, 30, "gives 25 tokens, and 30 are needed; give a longer text, or more tokens"),
        (9, 20, "gives 9 tokens, and 20 are needed"),
        (-9, 20, "gives 0 tokens, and 20 are needed"),
    ],
)
def test_too_few_tokens_are_refused(limit: int, size: int, message: str, text: Path, model_dir: Path) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read_windows(model_dir, text, limit, size)
    with pytest.raises(InvalidRequest, match="Python's manual gives 9 tokens"):
        read_windows(model_dir, None, 9, size)
