"""SnapKV's selection against one written with loops, from the paper's text."""

import math
from typing import NoReturn

import pytest
import torch

from ringkv.base.kv import KVChoice
from ringkv.base.selectors import Pooling, SnapKV
from ringkv.cache.compress.kept import kept
from ringkv.cache.compress.snapkv import votes
from ringkv.cache.compress.staged_prompt import StagedPrompt
from ringkv.cache.layouts import layout

SCALE = 0.29  # differs from every head_dim ** -0.5
LAYERS, HEADS, GROUPS, WIDTH = 2, 2, 3, 8


def never(*_: object) -> NoReturn:
    raise AssertionError("SnapKV rotates nothing, and repeats nothing")


def by_hand(q: torch.Tensor, keys: torch.Tensor, low: int, high: int, selector: SnapKV) -> list[list[float]]:
    """Return each candidate's votes for each head, one element at a time."""
    n, window = keys.shape[1], q.shape[2]
    result = []
    for h in range(HEADS):
        each = [[0.0] * n for _ in range(GROUPS)]
        for g in range(GROUPS):
            for w in range(window):
                visible = range(n - window + w + 1)
                scores = {j: math.exp(float(q[h, g, w] @ keys[h, j]) * SCALE) for j in visible}
                for j, score in scores.items():
                    each[g][j] += score / sum(scores.values())
        raw = [sum(votes) / GROUPS for votes in zip(*each, strict=True)]
        half, pooled = selector.kernel // 2, []
        for j in range(low, high):
            near = raw[max(low, j - half) : min(high, j + half + 1)]
            pooled.append(max(near) if selector.pooling == "max" else sum(near) / len(near))
        result.append(pooled)
    return result


@pytest.mark.parametrize("pooling", ["avg", "max"])
@pytest.mark.parametrize(("window", "kernel", "recent"), [(4, 5, 8), (12, 3, 4), (1, 1, 1)])
def test_the_kept_set_equals_a_brute_force_selection(pooling: Pooling, window: int, kernel: int, recent: int) -> None:
    torch.manual_seed(window)
    n, capacity = 50, 24
    selector = SnapKV(window, kernel, pooling)
    choice = KVChoice(sinks=3, recent=recent, select=selector)
    q, keys = torch.randn(LAYERS, HEADS, GROUPS, window, WIDTH) * 2, torch.randn(LAYERS, HEADS, n, WIDTH) * 2
    plan = layout(choice, n, capacity)
    low, high = plan.sinks, n - plan.recent

    got = torch.cat([*votes(StagedPrompt(q, keys, keys, SCALE, never, 0), low, high, selector)])
    want = [row for layer in range(LAYERS) for row in by_hand(q[layer], keys[layer], low, high, selector)]
    torch.testing.assert_close(got, torch.tensor(want), atol=1e-5, rtol=1e-4)

    for head, row in enumerate(kept(plan, got, LAYERS * HEADS).tolist()):
        ranked = sorted(range(low, high), key=lambda j: (-want[head][j - low], j))
        selected = sorted(ranked[: plan.selected])
        assert row[: plan.protected] == [*range(low), *selected]
        assert sorted(row[plan.protected :]) == list(range(high, n))


def test_equal_votes_go_to_the_earlier_token() -> None:
    plan = layout(KVChoice(sinks=1, recent=2), n=20, capacity=6)
    assert kept(plan, torch.ones(1, 17), 1)[0, :4].tolist() == [0, 1, 2, 3]
