"""Heads that divide a slot have the total of equal ones, and their steps run."""

from pathlib import Path

import pytest

from bench import head_budgets
from bench.head_budgets import LEAST, measured, shares
from tests import chat_model


@pytest.mark.parametrize("count", [2, 3, 8])
def test_shares_have_the_same_total_and_fall_to_the_least(count: int) -> None:
    divided = shares("adaptive", count, 1000)
    assert sum(divided) == sum(shares("equal", count, 1000)) == 1000 * count
    assert divided == sorted(divided, reverse=True)
    assert divided[-1] == LEAST * 1000


def test_slots_take_the_same_bytes_but_for_the_places_of_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = chat_model.save(tmp_path, max_position_embeddings=1024)
    monkeypatch.setattr(head_budgets, "STEPS", 2)
    monkeypatch.setattr(head_budgets, "WARM", 1)
    equal, divided = (measured(str(folder), heads, 400, graphs="off") for heads in ("equal", "adaptive"))
    assert equal.kept == divided.kept == 100
    assert 0 < divided.slots_bytes - equal.slots_bytes < equal.slots_bytes / 20
    assert divided.seconds > 0
