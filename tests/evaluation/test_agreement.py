"""Answers that only the full cache's can be compared with."""

from collections.abc import Iterator

import pytest

from ringkv.evaluation.journal import Record
from ringkv.evaluation.run import scored


def record(sample: str, cell: str, text: str, score: float | None = 0.0, task: str = "agreement") -> Record:
    return Record(task, "inside", sample, cell, score, text=text, error=None if score is not None else "too long")


def found(*records: Record, known: tuple[Record, ...] = ()) -> dict[tuple[str, str], float | None]:
    return {(one.sample, one.cell): one.score for one in scored(records, known)}


def test_an_answer_waits_for_the_full_caches_and_has_the_share_of_words_in_common() -> None:
    order: list[str] = []

    def arriving() -> Iterator[Record]:
        for one in (record("1", "half", "red fish"), record("1", "full", "blue fish"), record("1", "quarter", "")):
            order.append(f"in {one.cell}")
            yield one

    scores = {}
    for one in scored(arriving(), ()):
        order.append(f"out {one.cell}")
        scores[one.cell] = one.score
    assert scores == {"full": 1.0, "half": 0.5, "quarter": 0.0}
    assert order == ["in half", "in full", "out full", "out half", "in quarter", "out quarter"]


def test_a_run_that_goes_on_compares_with_the_answers_of_the_first() -> None:
    assert found(record("1", "half", "a b"), known=(record("1", "full", "b c d"),)) == {("1", "half"): 0.5}


def test_the_same_text_agrees_even_if_it_has_no_words() -> None:
    assert found(record("1", "full", "?"), record("1", "half", "?")) == {("1", "full"): 1.0, ("1", "half"): 1.0}


@pytest.mark.parametrize("is_first", [True, False])
def test_without_the_full_caches_answer_there_is_no_score(is_first: bool) -> None:
    records = [record("1", "full", "", None), record("1", "half", "red fish")]
    (full, half) = sorted(scored(records if is_first else records[::-1], ()), key=lambda one: one.cell)
    assert (full.error, half.score) == ("too long", None)
    assert half.error


def test_other_tasks_keep_their_scores() -> None:
    assert found(record("1", "half", "x", 0.25, "vt")) == {("1", "half"): 0.25}
