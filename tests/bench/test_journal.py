from pathlib import Path

from bench.journal import Journal

WORKLOAD = {"model": "m", "prompts": (512,)}


def test_a_measurement_is_on_disk_at_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "j", WORKLOAD, resume=False)
    journal.add("a", "laps", laps_s=[0.5])
    assert journal.path.read_text().splitlines()[1] == '{"trial": "a", "kind": "laps", "laps_s": [0.5]}'


def test_resuming_keeps_complete_trials_and_drops_an_interrupted_one(tmp_path: Path) -> None:
    first = Journal(tmp_path, "j", WORKLOAD, resume=False)
    first.add("a", "laps", laps_s=[1.0])
    first.add("a", "done")
    first.add("b", "laps", laps_s=[2.0])
    with open(first.path, "a") as file:
        file.write('{"trial": "b", "ki')
    again = Journal(tmp_path, "j", WORKLOAD, resume=True)
    assert again.records == first.records[:2]
    assert (again.is_done("a"), again.is_done("b")) == (True, False)
    again.add("b", "done")
    assert Journal(tmp_path, "j", WORKLOAD, resume=True).records == [*first.records[:2], {"trial": "b", "kind": "done"}]


def test_a_run_that_is_not_resumed_begins_anew_and_renames_the_old_journal(tmp_path: Path) -> None:
    first = Journal(tmp_path, "j", WORKLOAD, resume=False)
    first.add("a", "done")
    before = first.path.read_text()
    assert Journal(tmp_path, "j", WORKLOAD, resume=False).records == []
    assert first.path.with_suffix(".previous").read_text() == before


def test_another_workload_has_another_journal(tmp_path: Path) -> None:
    first = Journal(tmp_path, "j", WORKLOAD, resume=False)
    first.add("a", "done")
    assert Journal(tmp_path, "j", {**WORKLOAD, "prompts": (4096,)}, resume=True).records == []
    assert Journal(tmp_path, "j", WORKLOAD, resume=True).records == first.records
