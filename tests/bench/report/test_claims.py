"""Claims judged from answers with known outcomes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from bench.report.claims import CLAIMS, MET, NOISE, NOT_YET, TOO_FEW, claims_table, paired_scores, unmet_claims
from bench.studies import STUDIES
from ringkv.evaluation.journal import Record

LONGBENCH, NEEDLES, RULER = "choosing-longbench-qwen", "default-qwen", "ruler-qwen"
KVPRESS = "window=64 kernel=5 pooling=avg"
NEEDLE_TASKS = ("niah_single_1", "niah_multikey_1")


def answered(tasks: Sequence[str], scores: Mapping[str, Sequence[float]], place: str = "inside") -> list[Record]:
    """Return records in which every task has the same scores under each cache."""
    return [
        Record(task, place, f"{sample}", cell, score)
        for task in tasks
        for cell, of_prompts in scores.items()
        for sample, score in enumerate(of_prompts)
    ]


def judged(study: str, records: Sequence[Record], words: str) -> tuple[str, str, str]:
    """Return prompts, result and verdict of the first claim about a study whose text contains these words."""
    claim = next(one for one in CLAIMS if one.study == study and words in one.text)
    return claim.row({study: records})[1:]


def test_a_claim_without_answers_is_not_answered() -> None:
    assert {claim.row({})[2:] for claim in CLAIMS} == {(NOT_YET, "")}
    assert claims_table({}).count(NOT_YET) == len(CLAIMS)


def test_the_page_shows_claims_that_are_not_met_and_counts_the_others() -> None:
    records = answered(("qasper", "lcc"), {"full": [0.5] * 5, "snapstream 4x": [0.5] * 5})
    shown, every = (of({LONGBENCH: records}).splitlines() for of in (unmet_claims, claims_table))
    assert [line.split(" | ")[0] for line in every if line not in shown] == [
        f"| LongBench: 1/4 within 3%{without}" for without in ("", ", without `lcc`")
    ]
    assert len(shown[:-2]) == len(every) - 2
    assert shown[-1].startswith("Met: 2 others")


def test_every_claim_is_about_caches_of_its_study() -> None:
    for claim in CLAIMS:
        cells = {cell.label for cell in STUDIES[claim.study].cells} | ({"full"} if claim.full else set())
        assert set(claim.caches) <= cells
        assert claim.place in STUDIES[claim.study].places
        assert not claim.full or STUDIES[claim.full] == replace(STUDIES[claim.study], cells=STUDIES[claim.full].cells)


@pytest.mark.parametrize(
    ("ours", "found"), [(0.49, ("-2.0% [-2.0, -2.0]", "met")), (0.48, ("-4.0% [-4.0, -4.0]", "**missed**"))]
)
def test_near_is_a_share_of_the_full_cache(ours: float, found: tuple[str, str]) -> None:
    records = answered(("qasper", "lcc"), {"full": [0.5] * 5, "snapstream 4x": [ours] * 5})
    assert judged(LONGBENCH, records, "within 3%") == ("10", *found)


def test_a_claim_leaves_out_the_tasks_that_it_excludes() -> None:
    records = answered(("qasper",), {"full": [0.5] * 5, "snapstream 4x": [0.4] * 5})
    records += answered(("lcc",), {"full": [0.5] * 5, "snapstream 4x": [0.6] * 5})
    assert judged(LONGBENCH, records, "within 3%")[1:] == ("+0.0% [+0.0, +0.0]", "met")
    assert judged(LONGBENCH, records, "without `lcc`") == ("5", "-20.0% [-20.0, -20.0]", "**missed**")


def test_the_needle_claim_covers_each_needle_task_and_no_other() -> None:
    records = answered(NEEDLE_TASKS, {"streaming 4x": [0, 0, 0, 1, 0], "snapstream 4x": [1] * 5})
    records += answered(("cwe",), {"streaming 4x": [1] * 5, "snapstream 4x": [0] * 5})
    assert judged(NEEDLES, records, "on each") == ("10", "on 2 of 2 tasks", "met")
    records += answered(("niah_single_2",), {"streaming 4x": [0, 1, 0, 1, 0], "snapstream 4x": [1, 0, 0, 1, 0]})
    _, words, verdict = judged(NEEDLES, records, "on each")
    assert words.startswith("on 2 of 3 tasks; not on niah_single_2 +0.0 [")
    assert verdict == "**missed**"


def test_no_claim_is_judged_by_too_few_prompts_for_an_interval() -> None:
    records = answered(NEEDLE_TASKS, {"streaming 4x": [0] * 5, "snapstream 4x": [1] * 5})
    records += answered(("niah_single_2",), {"streaming 4x": [0] * 4, "snapstream 4x": [1] * 4})
    assert judged(NEEDLES, records, "on each")[1:] == ("no interval on 1 of 3 tasks", TOO_FEW)
    records = answered(("qasper",), {"full": [0.5] * 4, "snapstream 4x": [0.1] * 4})
    assert judged(LONGBENCH, records, "within 3%")[1:] == ("-80.0%", TOO_FEW)


def test_the_recovered_share_is_of_the_loss_with_questions_after_compression() -> None:
    snapkv, keydiff = f"snapkv 2x {KVPRESS}", "snapstream 2x select=keydiff"
    scores = {"full": [1.0] * 5, snapkv: [0.2] * 5, keydiff: [0.8] * 5}
    records = answered(NEEDLE_TASKS, scores, "after") + answered(NEEDLE_TASKS, {cell: [0.0] * 5 for cell in scores})
    assert judged(RULER, records, "kvpress's SnapKV") == ("10", "+75.0% [+75.0, +75.0]", "met")
    assert judged(RULER, records, "snapstream, window 64, loses")[1:] == (NOT_YET, "")


def test_tasks_that_settings_were_tuned_on_are_left_out_of_one_claim() -> None:
    ours, kvpress = "snapstream 4x window=64", f"snapstream 4x {KVPRESS}"
    records = answered(("niah_single_3", "niah_multikey_1"), {ours: [1] * 5, kvpress: [0] * 5})
    records += answered(("vt", "cwe"), {ours: [1] * 5, kvpress: [0.5] * 5})
    assert judged(RULER, records, "kvpress's settings on RULER") == ("20", "+75.0 points [+75.0, +75.0]", "met")
    assert judged(RULER, records, "tuned on") == ("10", "+50.0 points [+50.0, +50.0]", "met")


def test_losses_in_points_and_scores_are_judged_by_their_means() -> None:
    scores = {"full": [1.0] * 5, "arkvale 2x": [0.96] * 5, "arkvale 4x": [0.95] * 5}
    records = answered(("vt", "niah_single_3"), scores, "next")
    assert judged("later-qwen", records, "arkvale 1/2") == ("10", "-4.0 points [-4.0, -4.0]", "**missed**")
    assert judged("later-qwen", records, "arkvale 1/4") == ("10", "-5.0 points [-5.0, -5.0]", MET)
    for found, verdict in ((0.95, MET), (0.94, "**missed**")):
        keys = answered(("passkey",), {"arkvale 512": [found] * 5}, "next")
        assert judged("passkey-30k-qwen", keys, "95%")[2] == verdict


def test_full_caches_of_another_study_are_compared_on_the_same_prompts() -> None:
    paged = answered(("lcc", "qasper"), {"arkvale 4x": [0.5] * 5, "full": [0.9] * 5})
    claim = next(one for one in CLAIMS if one.study == "pages-16-longbench-qwen")
    full = answered(("lcc",), {"full": [0.5] * 5, "arkvale 4x": [0.1] * 5})
    found = claim.row({claim.study: [one for one in paged if one.cell != "full"], claim.full: full})
    assert found[1:] == ("5", "+0.0% [+0.0, +0.0]", MET)


def test_budgets_of_two_policies_are_compared_on_average() -> None:
    ring = {f"snapstream {budget}": [score] * 5 for budget, score in ((192, 1.0), (256, 0.0), (384, 0.5))}
    other = {f"h2o {budget}": [score] * 5 for budget, score in ((192, 0.0), (256, 0.6), (384, 0.6))}
    assert judged("watching-qwen", answered(("gsm8k",), ring | other), "`h2o`")[1:] == (
        "+10.0 points [+10.0, +10.0]",
        MET,
    )


@pytest.mark.parametrize(
    ("ours", "papers", "verdict"),
    [
        ([1, 1, 0, 1, 0], [1, 0, 0, 1, 0], "met"),
        ([1, 0, 0, 1, 0], [1, 1, 0, 0, 1], NOISE),
        ([0] * 5, [1] * 5, "**missed**"),
    ],
)
def test_a_lower_score_misses_only_if_the_whole_interval_is_below_zero(
    ours: list[float], papers: list[float], verdict: str
) -> None:
    records = answered(("gsm8k",), {"snapstream 192": ours, "snapstream 192 elastic=False": papers})
    assert judged("layouts-qwen", records, "192 entries")[2] == verdict


def test_only_prompts_with_all_scores_are_compared() -> None:
    records = answered(("vt",), {"full": [1, 1, 0], "streaming 4x": [0]})
    assert paired_scores(records, ("full", "streaming 4x")) == {"vt": [(1, 0)]}
