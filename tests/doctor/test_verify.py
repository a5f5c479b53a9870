"""Cached files whose bits changed are found by their digests, also if size and times are as before."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ringkv.doctor import verify as module
from ringkv.doctor.verify import verify
from ringkv.machine.seal import SEAL, changed, seal, stamp
from ringkv.residency.catalogue import catalogue


@pytest.fixture
def converted(tmp_cache: Path) -> Path:
    folder = tmp_cache / "converted" / "tiny-123"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 8)
    seal(folder)
    stamp(folder)
    return folder


def flip_silently(path: Path) -> None:
    """Change a bit as a failing disk does: the times stay."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[700] ^= 4
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_an_empty_cache_has_nothing_to_verify(tmp_cache: Path) -> None:
    assert verify(tmp_cache) == ()


def test_whole_folders_are_whole(tmp_cache: Path, converted: Path) -> None:
    (found,) = verify(tmp_cache)
    assert (found.path, found.fault, found.bytes > 2048) == (converted, None, True)


def test_a_flipped_bit_is_found_by_file_with_a_remedy(tmp_cache: Path, converted: Path) -> None:
    flip_silently(converted / "model.safetensors")
    (found,) = verify(tmp_cache)
    assert found.fault is not None
    assert found.fault.startswith("model.safetensors has changed")
    assert str(converted) in found.remedy


def test_a_running_conversion_is_left_out(tmp_cache: Path, converted: Path) -> None:
    running = converted.with_name("other-456.partial")
    running.mkdir()
    (running / SEAL).write_text('{"model.safetensors": {"bytes": 9, "sha256": ""}}')
    assert [found.path for found in verify(tmp_cache)] == [converted]


def test_a_file_that_vanishes_before_it_is_measured_has_no_bytes(
    tmp_cache: Path, converted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = sum(path.stat().st_size for path in converted.iterdir())
    listed, is_file = Path.rglob, Path.is_file
    monkeypatch.setattr(Path, "rglob", lambda folder, pattern: (*listed(folder, pattern), folder / "gone"))
    monkeypatch.setattr(Path, "is_file", lambda path: path.name == "gone" or is_file(path))
    assert [found.bytes for found in verify(tmp_cache)] == [left]


def test_a_folder_that_vanishes_before_it_is_listed_has_no_bytes(
    tmp_cache: Path, converted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish(path: Path, pattern: str) -> Iterator[Path]:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "rglob", vanish)
    assert [found.bytes for found in verify(tmp_cache)] == [0]


def test_digests_are_computed_though_the_stamp_is_right(tmp_cache: Path, converted: Path) -> None:
    flip_silently(converted / "model.safetensors")
    stamp(converted)
    assert changed(converted, lambda: pytest.fail("digests were computed")) is None
    assert verify(tmp_cache)[0].fault


def test_a_download_is_compared_with_the_catalogue(tmp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = replace(catalogue()["smollm2"], sha256=hashlib.sha256(b"right").hexdigest())
    monkeypatch.setattr(module, "catalogue", lambda: {"smollm2": model})
    (tmp_cache / "models").mkdir(parents=True)
    path = tmp_cache / "models" / model.file
    for content, whole in ((b"right", True), (b"wrong", False)):
        path.write_bytes(content)
        (found,) = verify(tmp_cache)
        assert (found.path, found.fault is None) == (path, whole)
