from pathlib import Path

import pytest

from bench.peers.journal import Journal, OtherWorkload


def test_what_was_measured_is_on_disk_at_once(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    Journal(path, {"model": "m"}, resume=False).add("a", "laps", laps_s=[0.5])
    assert path.read_text().splitlines()[1] == '{"play": "a", "kind": "laps", "laps_s": [0.5]}'


def test_resuming_keeps_plays_that_are_over_and_forgets_one_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    first = Journal(path, {"model": "m"}, resume=False)
    first.add("a", "laps", laps_s=[1.0])
    first.add("a", "done")
    first.add("b", "laps", laps_s=[2.0])
    with open(path, "a") as file:
        file.write('{"play": "b", "ki')
    again = Journal(path, {"model": "m"}, resume=True)
    assert [record["play"] for record in again.records] == ["a", "a"]
    assert (again.is_done("a"), again.is_done("b")) == (True, False)
    again.add("b", "done")
    assert Journal(path, {"model": "m"}, resume=True).is_done("b")


def test_a_run_that_is_not_resumed_begins_afresh(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    Journal(path, {}, resume=False).add("a", "done")
    assert Journal(path, {}, resume=False).records == []


def test_another_workload_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    Journal(path, {"prompts": (512,)}, resume=False)
    Journal(path, {"prompts": (512,)}, resume=True)
    with pytest.raises(OtherWorkload, match="another workload"):
        Journal(path, {"prompts": (4096,)}, resume=True)
