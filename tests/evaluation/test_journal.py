import pytest

from ringkv.base.errors import InvalidRequest
from ringkv.evaluation.journal import NAME, Journal, Record, about, read

ABOUT = {"model": "m", "seed": 0}
ONE = Record("vt", "inside", "4096/0", "full", 0.5, "abc", "täxt\n", facts={"length": 4096}, logprobs=(-1.0,))
TWO = Record("vt", "inside", "4096/0", "snapstream 4x", None, error="too small")


def test_the_next_run_reads_what_was_added(tmp_path):
    first = Journal(tmp_path, ABOUT)
    first.begin({"machine": "a"})
    first.add(ONE)
    second = Journal(tmp_path, ABOUT)
    assert second.records == [ONE]
    assert second.done == {("vt", "inside", "4096/0", "full"): "abc"}
    second.begin({"machine": "b"})
    second.begin({"machine": "a"})
    second.add(TWO)
    assert list(read(tmp_path / NAME)) == [ONE, TWO]
    assert about(tmp_path / NAME) == ABOUT | {"sessions": [{"machine": "a"}, {"machine": "b"}]}


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_only_a_line_that_was_cut_short_is_removed(tmp_path, cut):
    journal = Journal(tmp_path, ABOUT)
    journal.begin({"machine": "a"})
    journal.add(ONE)
    journal.add(TWO)
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes()[:-cut])
    again = Journal(tmp_path, ABOUT)
    assert again.records == [ONE]
    again.add(TWO)
    assert list(read(path)) == [ONE, TWO]


def test_nothing_is_written_before_answers_begin(tmp_path):
    Journal(tmp_path / "new", ABOUT)
    assert not (tmp_path / "new").exists()


def test_answers_of_another_run_are_not_mixed(tmp_path):
    Journal(tmp_path, ABOUT).begin({"machine": "a"})
    with pytest.raises(InvalidRequest, match=r"model m .* n "):
        Journal(tmp_path, {"model": "n", "seed": 0})
