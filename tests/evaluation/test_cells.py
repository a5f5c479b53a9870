import pytest

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import SnapKV
from ringkv.evaluation.cells import Cell, crossed


def test_every_policy_meets_every_budget_and_full_stands_alone():
    cells = crossed(("snapstream", "full", "streaming"), ("2x", "512"), KVChoice())
    assert [cell.label for cell in cells] == [
        "full",
        "snapstream 2x",
        "streaming 2x",
        "snapstream 512",
        "streaming 512",
    ]


def test_a_label_tells_every_setting_that_is_not_the_usual_one():
    (cell,) = crossed(("snapstream",), ("4x",), KVChoice(select=SnapKV(window=16, pooling="avg")))
    assert cell.label == "snapstream 4x window=16 pooling=avg"


def test_a_budget_is_a_share_of_the_prompt_or_a_number_and_full_holds_all():
    assert Cell(KVChoice(), "4x").of(1000, 50).budget == 250
    assert Cell(KVChoice(), "300").of(1000, 50).budget == 300
    assert Cell(KVChoice("full")).of(1000, 50).budget == 1050


@pytest.mark.parametrize("word", ["a quarter", "0", "-4", "4 x x"])
def test_a_budget_that_is_neither_is_refused(word):
    with pytest.raises(InvalidRequest):
        crossed(("snapstream",), (word,), KVChoice())


def test_cells_that_protect_or_go_on_otherwise_have_names_of_their_own() -> None:
    choices = (KVChoice(), KVChoice(protect=((0, 9),)), KVChoice(turns="continue"))
    assert len({Cell(choice, "4x").label for choice in choices}) == len(choices)
