"""Sealed folders: every change of a file is named."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ringkv.machine.seal import SEAL, broken, seal


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    (tmp_path / "graph.so").write_bytes(bytes(range(256)))
    (tmp_path / "graph.json").write_text("{}")
    seal(tmp_path)
    return tmp_path


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def test_an_untouched_folder_is_whole(sealed: Path) -> None:
    assert broken(sealed) is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (flip, "graph.so has changed bytes"),
        (lambda path: path.write_bytes(b""), "graph.so has 0 bytes instead of 256"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "graph.so has 255 bytes instead of 256"),
        (Path.unlink, "graph.so is missing"),
    ],
)
def test_a_changed_file_is_named(sealed: Path, change: Callable[[Path], object], named: str) -> None:
    change(sealed / "graph.so")
    assert str(broken(sealed)).startswith(named)


@pytest.mark.parametrize("text", ["", "[]", "[1]", '{"graph.so": 1}', '{"graph.so": {}}', "[" * 100_000])
def test_a_seal_that_is_no_seal_breaks_the_folder(sealed: Path, text: str) -> None:
    (sealed / SEAL).write_text(text)
    assert broken(sealed) is not None
