"""Folders of compiled code: made once, made again if they changed, refused if others could change them."""

import errno
import shutil
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import Mock

import pytest

from ringkv.base.errors import BadCache
from ringkv.kernels import built as module
from ringkv.kernels import native
from ringkv.kernels.built import built


class Maker:
    """Writes one file, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, into: Path) -> None:
        self.calls += 1
        (into / "code.so").write_bytes(b"code")


def ignore() -> None:
    pass


def test_a_folder_is_made_once_and_found_again(tmp_path: Path) -> None:
    make, folder = Maker(), tmp_path / "graphs" / "f"
    assert [built(folder, make, ignore) for _ in range(2)] == [folder] * 2
    assert make.calls == 1
    assert {path.name for path in folder.iterdir()} == {"code.so", "seal.json"}


@pytest.mark.parametrize("content", [b"", b"cod", b"evil"])
def test_a_changed_folder_is_named_and_made_again(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    make, folder = Maker(), tmp_path / "graphs" / "f"
    (built(folder, make, ignore) / "code.so").write_bytes(content)
    assert (built(folder, make, ignore) / "code.so").read_bytes() == b"code"
    assert make.calls == 2
    assert "code.so has" in caplog.text


def test_a_changed_folder_that_cannot_be_deleted_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, rmtree = tmp_path / "graphs" / "f", shutil.rmtree
    (built(folder, Maker(), ignore) / "code.so").write_bytes(b"evil")

    def keep(path: Any, ignore_errors: bool = False, **more: Any) -> None:
        if Path(path) != folder:
            rmtree(path, ignore_errors, **more)
        elif not ignore_errors:
            raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(shutil, "rmtree", keep)
    with pytest.raises(BadCache, match=rf"{folder} .*Permission denied"):
        built(folder, Maker(), ignore)


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = built(tmp_path / "graphs" / "f", Maker(), ignore)
    folder.parent.chmod(0o777)
    with pytest.raises(BadCache, match=r"mode 777.*chmod"):
        built(folder, Maker(), ignore)


def test_a_read_only_folder_with_everything_compiled_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = built(tmp_path / "graphs" / "f", Maker(), ignore)
    monkeypatch.setattr(module, "unwritable", lambda _: "the disk is read-only")
    assert built(folder, Maker(), ignore) == folder
    with pytest.raises(BadCache, match="read-only"):
        built(folder.with_name("g"), Maker(), ignore)


def test_a_compiler_that_fails_on_a_full_disk_is_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([None, "no space is left"])
    monkeypatch.setattr(module, "unwritable", lambda _: next(answers))

    def fail(into: Path) -> None:
        raise RuntimeError("g++: internal error")

    with pytest.raises(BadCache, match="no space"):
        built(tmp_path / "graphs" / "f", fail, ignore)


def test_the_second_of_two_waits_says_so_and_makes_nothing(tmp_path: Path) -> None:
    folder, is_making, is_waiting = tmp_path / "graphs" / "f", Event(), Event()
    first, second = Maker(), Maker()

    def slow(into: Path) -> None:
        is_making.set()
        assert is_waiting.wait(10)
        first(into)

    thread = Thread(target=built, args=(folder, slow, ignore))
    thread.start()
    assert is_making.wait(10)
    built(folder, second, is_waiting.set)
    thread.join()
    assert (first.calls, second.calls) == (1, 0)


def test_a_kernel_build_that_failed_is_not_tried_again(tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo 1 && exit\necho x >> {tmp_path}/runs\necho no such type >&2\nexit 1\n'
    )
    compiler.chmod(0o700)
    cache, builds = tmp_path / "kernels", Mock()
    assert native.failure(str(compiler), cache) is None
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no such type"):
            native.load(str(compiler), cache, builds)
    assert (tmp_path / "runs").read_text() == "x\n"
    assert "to try again" in str(native.failure(str(compiler), cache))
    builds.assert_called_once_with(0, len(list(native.SOURCES.glob("*.cpp"))))


def test_a_kernel_build_that_was_killed_is_tried_again(tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 1 && exit\nkill -9 $$\n')
    compiler.chmod(0o700)
    with pytest.raises(native.Killed):
        native.load(str(compiler), tmp_path / "kernels")
    assert native.failure(str(compiler), tmp_path / "kernels") is None
