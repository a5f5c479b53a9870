import json
import lzma

import pytest

from bench.results import RESULTS
from bench.studies import STUDIES
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import TOVA, KeyDiff, KVzip, SnapKV
from ringkv.evaluation.cells import Cell, crossed, usual


def test_every_policy_meets_every_budget_and_full_stands_alone():
    cells = crossed(("snapstream", "full", "streaming"), ("2x", "512"), KVChoice())
    assert [cell.label for cell in cells] == [
        "full",
        "snapstream 2x",
        "streaming 2x",
        "snapstream 512",
        "streaming 512",
    ]


def test_a_label_names_every_setting_that_is_not_the_default():
    (cell,) = crossed(("snapstream",), ("4x",), KVChoice(select=SnapKV(window=16, pooling="avg")))
    assert cell.label == "snapstream 4x window=16 pooling=avg"


def test_a_budget_is_a_share_of_the_prompt_or_a_number_and_full_keeps_all():
    assert Cell(KVChoice(), "4x").of(1000, 50).budget == 250
    assert Cell(KVChoice(), "300").of(1000, 50).budget == 300
    assert Cell(KVChoice("full")).of(1000, 50).budget == 1050


@pytest.mark.parametrize("word", ["a quarter", "0", "-4", "4 x x"])
def test_a_budget_that_is_neither_is_refused(word):
    with pytest.raises(InvalidRequest):
        crossed(("snapstream",), (word,), KVChoice())


def test_cells_that_differ_in_protected_spans_or_turns_have_different_labels() -> None:
    choices = (KVChoice(), KVChoice(protect=((0, 9),)), KVChoice(turns="continue"))
    assert len({Cell(choice, "4x").label for choice in choices}) == len(choices)


@pytest.mark.parametrize(
    ("cell", "label"),
    [
        (
            Cell(KVChoice(select=SnapKV(window=64, kernel=5, pooling="avg")), "4x"),
            "snapstream 4x window=64 kernel=5 pooling=avg",
        ),
        (
            Cell(KVChoice("snapkv", sinks=0, recent=0.5), "512"),
            "snapkv 512 sinks=0 recent=0.5",
        ),
        (Cell(KVChoice(select=KeyDiff()), "2x"), "snapstream 2x select=keydiff"),
        (Cell(KVChoice(select=TOVA()), "2x"), "snapstream 2x select=tova"),
        (Cell(KVChoice(select=KVzip()), "2x"), "snapstream 2x select=kvzip"),
        (
            Cell(KVChoice(elastic=False, turns="continue", protect=((0, 9),)), "8x"),
            "snapstream 8x elastic=False protect=((0, 9),) turns=continue",
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_label_is_written_as_in_the_stored_answers(cell: Cell, label: str) -> None:
    assert cell.label == label


@pytest.mark.parametrize("name", STUDIES)
def test_the_stored_answers_of_a_study_have_the_labels_of_its_cells(name: str) -> None:
    kept = RESULTS / "accuracy" / f"{name}.jsonl.xz"
    if not kept.exists():
        pytest.skip(f"{name} has not run")
    head, *lines = map(json.loads, lzma.decompress(kept.read_bytes()).decode().splitlines())
    assert head["about"]["usual"] == usual()
    recorded = {line["cell"] for line in lines if "cell" in line}
    assert {cell.label for cell in STUDIES[name].cells} <= recorded


def test_a_slot_of_arkvale_holds_every_token_whatever_a_step_reads() -> None:
    paged, compressed = (Cell(KVChoice(policy), "4x") for policy in ("arkvale", "snapstream"))
    assert (paged.held(1000, 50), paged.of(1000, 50).budget) == (1050, 250)
    assert (compressed.held(1000, 50), compressed.of(1000, 50).budget) == (250, 250)
