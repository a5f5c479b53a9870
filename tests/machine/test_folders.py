"""Folders of compiled code belong to this user alone, and a disk that cannot be written is one sentence."""

import os
import stat
from pathlib import Path

import pytest

from ringkv.machine import folders


def test_a_new_folder_and_its_parents_are_closed_to_others(tmp_path: Path) -> None:
    assert folders.make_private(tmp_path / "cache" / "graphs") is None
    for name in ("cache", "cache/graphs"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_may_write_to_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    assert f"mode {mode:o}" in str(folders.make_private(tmp_path))
    assert f"chmod -R go-w {tmp_path}" in str(folders.make_private(tmp_path))
    tmp_path.chmod(mode & ~0o022)
    assert folders.make_private(tmp_path) is None


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = tmp_path.stat().st_uid + 1000
    if os.geteuid() == 0:
        os.chown(tmp_path, stranger, -1)
        assert f"belongs to user {stranger}" in str(folders.strangers(tmp_path))
    else:
        monkeypatch.setattr(os, "geteuid", lambda: stranger)
        assert f"belongs to user {tmp_path.stat().st_uid}" in str(folders.strangers(tmp_path))


def test_a_full_disk_is_named_with_its_free_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folders.unwritable(tmp_path) is None
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 2_000_000})())
    assert "2.0 MB are free" in str(folders.unwritable(tmp_path))


def test_a_folder_that_cannot_be_made_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    fault = str(folders.make_private(tmp_path / "file" / "graphs"))
    assert "cannot be written" in fault
    assert "RINGKV_CACHE" in fault


def test_a_folder_is_removed_with_its_files_and_a_missing_one_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "f" / "g").mkdir(parents=True)
    (tmp_path / "f" / "g" / "file").write_text("x")
    assert [folders.remove(tmp_path / "f") for _ in range(2)] == [None, None]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_removed_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a file")
    assert f"{tmp_path / 'f'} cannot be deleted" in str(folders.remove(tmp_path / "f"))
