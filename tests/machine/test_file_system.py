"""The file system of a folder, from the system's list of mounts."""

import shutil
import subprocess
from pathlib import Path

import pytest

from ringkv.machine import folders
from ringkv.machine.folders import file_system


def test_the_innermost_mount_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "a b" / "c"
    inner.mkdir(parents=True)
    mounts, spaced = tmp_path / "mounts", str(inner.parent).replace(" ", r"\040")
    mounts.write_text(f"/dev/x / ext4 rw 0 0\nnone {spaced} ext4 rw 0 0\nnone {spaced} tmpfs rw,size=5g 0 0\n")
    monkeypatch.setattr(folders, "_MOUNTS", mounts)
    assert [file_system(one) for one in (inner, inner.parent, tmp_path)] == ["tmpfs", "tmpfs", "ext4"]
    monkeypatch.setattr(folders, "_MOUNTS", tmp_path / "missing")
    assert file_system(inner) == ""


@pytest.mark.skipif(shutil.which("findmnt") is None, reason="no findmnt")
@pytest.mark.parametrize("folder", [Path("/"), Path("/proc/self"), Path(__file__)], ids=str)
def test_it_is_what_findmnt_says(folder: Path) -> None:
    command = ("findmnt", "--noheadings", "--output", "FSTYPE", "--target", folder.resolve())
    assert file_system(folder) == subprocess.check_output(command, text=True).split()[-1]
