"""Perplexity: the score of a window, and its row in the table."""

from collections.abc import Iterator, Sequence
from math import log
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from bench import perplexity as module
from bench.perplexity import WeightsFigure, loss, measure, shown, windows


class Rising:
    """An engine that predicts t + 1 after token t, e times as likely as each other token of 10, in pieces of 7 rows."""

    def prompt_logits(self, tokens: Sequence[int], rows: int) -> Iterator[Tensor]:
        for piece in torch.tensor(tokens).split(7):
            yield torch.nn.functional.one_hot(piece + 1, 10).float()


def test_every_token_except_the_first_is_scored_by_the_one_before_it() -> None:
    normal = log(9 + torch.e)
    assert loss(Rising(), [0, 1, 2, 3]) == pytest.approx(normal - 1)
    assert loss(Rising(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 3]) == pytest.approx(normal - 8 / 9)


def test_windows_are_whole_and_a_text_without_one_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    text = tmp_path / "text.txt"
    text.write_text("x" * 5000)
    tokenizer = SimpleNamespace(encode=lambda text, add_special_tokens: list(range(len(text))))
    monkeypatch.setattr(module, "locate", lambda model: tmp_path)
    monkeypatch.setattr(module, "Tokenizer", SimpleNamespace(from_directory=lambda folder: tokenizer))
    assert [(one[0], len(one)) for one in windows("any", text, None)] == [(0, 2048), (2048, 2048)]
    with pytest.raises(SystemExit, match=r"2,047 .* 2,048"):
        windows("any", text, 2047)


def test_the_cost_of_fewer_bits_is_reported_if_16_bits_were_measured_before(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {"bf16": 2.0, "int8": 2.0, "int4": log(2) + 2.0}
    monkeypatch.setattr(module, "windows", lambda *words: [])
    monkeypatch.setattr(module.Shape, "of", lambda config, name: SimpleNamespace(parameters=8))
    monkeypatch.setattr(module, "load_config", lambda folder: None)
    monkeypatch.setattr(module, "locate", lambda model: None)
    monkeypatch.setattr(module, "SIDES", {"ringkv": lambda model, weights, *words: (16, [losses[weights]])})
    args = SimpleNamespace(text=None, tokens=None, threads=1, ours=["int8", "bf16", "int4"], theirs=[])
    assert [one.over_16_bits for one in measure("any", args)] == [None, 0.0, pytest.approx(1.0)]  # type: ignore[arg-type]
    assert "| any, ringkv int4 | 5.00 | 9.000 | +12.50% |" in shown(
        [WeightsFigure("any", "ringkv", "int4", 5, 9, 0.125)]
    )
