"""Journals of studies: packed, read and continued."""

from pathlib import Path

from bench.answers import about, names, pack, records, unpack
from bench.studies import STUDIES
from ringkv.evaluation.journal import Journal, Record

ABOUT = {"model": "m", "weights": "bf16"}
SESSION = {"machine": "a machine", "version": "1"}


def answered(folder: Path, *samples: str) -> None:
    journal = Journal(folder, ABOUT)
    journal.begin(SESSION)
    for sample in samples:
        journal.add(Record("vt", "inside", sample, "full", 1.0, logprobs=(-0.5,)))


def test_a_packed_journal_is_read_and_continued(tmp_path: Path) -> None:
    work, kept = tmp_path / "work", tmp_path / "kept"
    answered(work, "0", "1")
    pack("study", work, kept)
    assert [(one.sample, one.logprobs) for one in records("study", kept)] == [("0", (-0.5,)), ("1", (-0.5,))]
    assert about("study", kept) == ABOUT | {"sessions": [SESSION]}
    elsewhere = tmp_path / "elsewhere"
    unpack("study", elsewhere, kept)
    answered(elsewhere, "2")
    pack("study", elsewhere, kept)
    assert [one.sample for one in records("study", kept)] == ["0", "1", "2"]


def test_answers_of_a_run_that_ended_before_it_was_packed_are_not_lost(tmp_path: Path) -> None:
    work, kept = tmp_path / "work", tmp_path / "kept"
    answered(work, "0")
    pack("study", work, kept)
    answered(work, "1")
    longer = unpack("study", work, kept).read_bytes()
    pack("study", work, kept)
    assert [one.sample for one in records("study", kept)] == ["0", "1"]
    assert (work / "answers.jsonl").read_bytes() == longer


def test_another_journal_in_the_same_place_is_replaced(tmp_path: Path) -> None:
    work, kept = tmp_path / "work", tmp_path / "kept"
    answered(work, "0", "1")
    pack("study", work, kept)
    other = tmp_path / "other"
    answered(other, "7")
    unpack("study", other, kept)
    assert (other / "answers.jsonl").read_bytes() == (work / "answers.jsonl").read_bytes()


def test_packing_an_unchanged_journal_writes_nothing(tmp_path: Path) -> None:
    work, kept = tmp_path / "work", tmp_path / "kept"
    answered(work, "0")
    pack("study", work, kept)
    path = kept / "study.jsonl.xz"
    before = path.stat().st_mtime_ns
    pack("study", work, kept)
    assert path.stat().st_mtime_ns == before


def test_a_study_that_has_not_begun_has_no_answers(tmp_path: Path) -> None:
    assert records("study", tmp_path) == []
    pack("study", tmp_path / "nowhere", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_every_study_has_answers_and_no_answer_has_its_text() -> None:
    assert set(STUDIES) <= set(names())
    for name in names():
        found = records(name)
        assert found
        assert not any(one.text for one in found)
