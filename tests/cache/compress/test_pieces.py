"""Selectors that score a long prompt in pieces: the votes do not depend on them, and temporary tensors stay small."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ringkv.base.selectors import KeyDiff
from ringkv.cache.compress import kept, staged_prompt
from ringkv.cache.compress.kept import top_votes
from ringkv.cache.compress.select import votes_of_layers
from ringkv.cache.compress.staged_prompt import StagedPrompt
from ringkv.cache.steps import finished


class Largest(TorchDispatchMode):
    """Notes how many bytes the largest tensor has that any operator returns."""

    bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.bytes = max(self.bytes, result.untyped_storage().nbytes())
        return result


def prompt(n: int, heads: int, width: int) -> StagedPrompt:
    torch.manual_seed(0)
    keys, values = (torch.randn(1, heads, n, width).bfloat16() for _ in range(2))
    q = torch.randn(1, heads, 4, 8, width)
    return StagedPrompt(q, keys, values, 0.1, lambda *_: (), 0)


def test_votes_are_the_same_whatever_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    given = prompt(500, 2, 48)
    monkeypatch.setattr(staged_prompt, "AT_ONCE", 1 << 30)
    want = finished(votes_of_layers(given, 3, 490, KeyDiff()))
    monkeypatch.setattr(staged_prompt, "AT_ONCE", 37 * 2 * 48)
    got = finished(votes_of_layers(given, 3, 490, KeyDiff()))
    assert torch.equal(got, want)


def test_no_temporary_tensor_is_larger_than_the_keys() -> None:
    given, largest = prompt(16384, 8, 128), Largest()
    with largest:
        finished(votes_of_layers(given, 4, 16000, KeyDiff()))
    assert largest.bytes == given.keys.nbytes == 32 << 20  # those of views of the keys


def test_the_highest_votes_are_the_same_however_many_rows_are_ordered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    votes = torch.randint(0, 50, (7, 100)).float()
    want = top_votes(votes, 30)
    for at_once in (1, 200, 250):
        monkeypatch.setattr(kept, "AT_ONCE", at_once)
        assert torch.equal(top_votes(votes, 30), want)
