"""A text in windows of tokens; the tiny model's tokens are bytes."""

from pathlib import Path

import pytest

from ringkv.base.errors import InvalidRequest
from ringkv.cli.document import manual
from ringkv.cli.windows import read_windows

TEXT = bytes(range(97, 122)).decode("ascii")  # 25 tokens


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def tokens(letters: str, model_dir: Path) -> list[int]:
    from ringkv.text.tokenizer import Tokenizer

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
    with pytest.raises(InvalidRequest, match="9 tokens"):
        read_windows(model_dir, None, 9, size)
