"""Stamps: digests are computed again unless nothing has touched a file since they were right."""

from pathlib import Path

import pytest

from ringkv.machine import seal as module
from ringkv.machine.seal import SEAL, STAMP, broken, changed, seal


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    (tmp_path / "graph.so").write_bytes(bytes(256))
    seal(tmp_path)
    return tmp_path


def test_a_file_that_changes_while_digests_are_computed_is_verified_again(
    sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_then_written(folder: Path) -> str | None:
        fault = broken(folder)
        (folder / "graph.so").write_bytes(bytes(255) + b"1")
        return fault

    with monkeypatch.context() as patched:
        patched.setattr(module, "broken", broken_then_written)
        assert changed(sealed, lambda: None) is None
    assert str(changed(sealed, lambda: None)).startswith("graph.so has changed")


def test_a_verified_folder_is_not_read_again(sealed: Path) -> None:
    assert changed(sealed, lambda: None) is None
    assert changed(sealed, lambda: pytest.fail("digests were computed")) is None


@pytest.mark.parametrize("content", [b"", b"{}", b"[1", b"null", b"\xff", b"[" * 100_000])
def test_digests_are_computed_if_the_stamp_has_another_content(content: bytes, sealed: Path) -> None:
    (sealed / STAMP).write_bytes(content)
    verified: list[None] = []
    assert changed(sealed, lambda: verified.append(None)) is None
    assert verified == [None]


def test_a_folder_whose_seal_is_gone_is_changed(sealed: Path) -> None:
    assert changed(sealed, lambda: None) is None
    (sealed / SEAL).unlink()
    assert str(changed(sealed, lambda: None)).startswith("seal.json cannot be")
