"""Verdicts compared with ratios of means that loops work out, and with the delta method's intervals."""

from collections.abc import Callable
from math import exp, sqrt
from random import Random
from statistics import fmean, variance

import pytest

from ringkv.evaluation.journal import Record
from ringkv.evaluation.sentences import headline, line, of_full
from ringkv.evaluation.tasks.catalogue import KINDS, TASKS
from ringkv.evaluation.verdict import Comparison, compare

HELD = {"full": 1000, "snapkv 4x": 250, "snapstream 2x": 500, "snapstream 4x": 250, "streaming 4x": 250}
Scores = Callable[[str], float]


def answers(
    task: str, count: int, scores: dict[str, Scores], length: int = 4096, place: str = "inside"
) -> list[Record]:
    """Return `count` answers of each cell; a score is a function of the sample's name."""
    return [
        Record(
            task,
            place,
            f"{length}/{at}",
            cell,
            score(f"{task}/{length}/{at}"),
            prompt_tokens=1000,
            kept=HELD[cell],
            facts={"length": length},
        )
        for cell, score in scores.items()
        for at in range(count)
    ]


def often(share: float) -> Scores:
    """Return right answers to about this share of prompts; a prompt that is right for less is right for more."""
    return lambda name: float(Random(name).random() < share)


def only(records: list[Record]) -> Comparison:
    (found,) = compare(records)
    return found


def test_a_share_is_a_ratio_of_means_over_tasks_and_lengths_of_equal_weight() -> None:
    cells = {"full": often(0.9), "snapstream 4x": often(0.6)}
    records = [*answers("vt", 40, cells), *answers("vt", 20, cells, 8192), *answers("qa_1", 30, cells)]
    (found,) = only(records).verdicts
    strata = [("vt", 4096, 40), ("vt", 8192, 20), ("qa_1", 4096, 30)]
    own, full, spread = [], [], 0.0
    for task, length, count in strata:
        pairs = [[cells[cell](f"{task}/{length}/{at}") for cell in ("snapstream 4x", "full")] for at in range(count)]
        own.append(fmean(one for one, _ in pairs))
        full.append(fmean(one for _, one in pairs))
        spread += variance(one - other * 0.6 / 0.9 for one, other in pairs) / count / len(strata) ** 2
    share = fmean(own) / fmean(full)
    reach = 1.96 * sqrt(spread) / fmean(full)
    assert found.share is not None
    assert found.share.mean == pytest.approx(100 * share)
    assert found.share.low == pytest.approx(100 * (share - reach), abs=1)
    assert found.share.high == pytest.approx(100 * (share + reach), abs=1)
    assert (found.prompts, found.tasks, found.held, found.outcome) == (90, {"vt", "qa_1"}, 0.25, "worse")


def test_the_best_is_first_and_the_smallest_that_certainly_keeps_enough_is_the_headline() -> None:
    scores = {"full": often(1), "streaming 4x": often(0.3), "snapstream 4x": often(0.97), "snapstream 2x": often(1)}
    found = only(answers("vt", 200, scores))
    assert [one.cell for one in found.verdicts] == ["snapstream 2x", "snapstream 4x", "streaming 4x"]
    assert found.most_useful.cell == "snapstream 4x"
    assert headline(found).startswith("At 4x, snapstream keeps 9")
    assert of_full(found) == "The full cache scores 100.0% over 200 prompts."


def test_of_equal_caches_the_headline_names_the_default_policy() -> None:
    found = only(answers("vt", 200, {"full": often(1), "snapkv 4x": often(0.97), "snapstream 4x": often(0.97)}))
    assert [one.cell for one in found.verdicts] == ["snapstream 4x", "snapkv 4x"]
    assert found.most_useful.cell == "snapstream 4x"


def test_the_kind_that_suffers_most_is_named_and_among_tasks_of_one_kind_the_task() -> None:
    full, bad, good = often(1), often(0.5), often(0.95)
    records = [
        *answers("vt", 50, {"full": full, "snapstream 4x": good}),
        *answers("niah_single_2", 50, {"full": full, "snapstream 4x": bad}),
        *answers("niah_multikey_3", 50, {"full": full, "snapstream 4x": good}),
    ]
    worst = only(records).verdicts[0].worst
    look_ups = [bad(f"niah_single_2/4096/{at}") for at in range(50)]
    look_ups += [good(f"niah_multikey_3/4096/{at}") for at in range(50)]
    assert worst is not None
    assert (worst.name, worst.is_plural, worst.share) == ("look-ups", True, pytest.approx(100 * fmean(look_ups)))
    assert f"; look-ups suffer most ({worst.share:.0f}%)" in line(only(records).verdicts[0])
    of_one_kind = only(records[100:]).verdicts[0]
    assert "; niah_single_2 suffers most (" in line(of_one_kind)


def test_nothing_suffers_most_if_all_tasks_are_about_the_same() -> None:
    cells = {"full": often(1), "snapstream 4x": lambda name: 0.9}
    assert only([*answers("vt", 9, cells), *answers("qa_1", 9, cells)]).verdicts[0].worst is None


def test_three_prompts_are_too_few_and_the_loss_is_still_said() -> None:
    found = only(answers("vt", 3, {"full": often(1), "snapstream 4x": lambda name: float(name.endswith("/0"))}))
    assert found.verdicts[0].outcome == "few"
    assert headline(found) == (
        "At 4x, snapstream has too few prompts to tell (3; about 97 would do); "
        "so far it keeps 33% of the full cache's score on RULER."
    )


def test_a_full_cache_that_scores_nothing_and_one_that_is_missing_are_nothing_to_compare_with() -> None:
    found = only(answers("vt", 9, {"full": often(0), "snapstream 4x": often(0)}))
    assert line(found.verdicts[0]) == "nothing can be said, because the full cache's score is 0"
    assert compare(answers("vt", 9, {"snapstream 4x": often(1)})) == []


def test_places_of_the_question_are_compared_apart_and_perplexities_last() -> None:
    cells = {"full": often(1), "snapstream 4x": often(1)}
    losses = {"full": lambda name: -2.0, "snapstream 4x": lambda name: -2.1}
    records = [
        *answers("wikitext", 6, losses, place="after"),
        *answers("vt", 20, cells, place="next"),
        *answers("vt", 20, cells),
    ]
    inside, later, text = compare(records)
    assert [one.place for one in (inside, later, text)] == ["inside", "next", "after"]
    assert headline(later).endswith("on RULER, question in the next turn: no difference found.")
    more = 100 * (exp(0.1) - 1)
    expected = f"At 4x, snapstream raises the perplexity by {more:.1f}% [+{more:.1f}, +{more:.1f}] on WikiText-2."
    assert headline(text) == expected
    assert of_full(text) == f"The full cache's perplexity is {exp(2):.2f} over 6 prompts."


def test_a_users_own_prompts_are_named_and_without_answers_agreement_is() -> None:
    cells = {"full": often(1), "snapstream 4x": often(0.8)}
    assert "of the full cache's score on your prompts." in headline(only(answers("answers", 60, cells)))
    assert "with the full cache's answers on your prompts." in headline(only(answers("agreement", 60, cells)))


def test_a_size_in_entries_is_a_number_of_entries() -> None:
    records = answers("vt", 20, {"full": often(1), "snapstream 4x": often(1)})
    renamed = [Record(**{**vars(one), "cell": one.cell.replace("4x", "1024 window=64")}) for one in records]
    assert headline(only(renamed)).startswith("At 1,024 entries, snapstream window=64 keeps 100% [100, 100] of")


def test_every_task_has_a_kind_but_a_users_own_and_perplexity() -> None:
    assert {name for name, task in TASKS.items() if task.group not in ("own", "text")} == set(KINDS)
