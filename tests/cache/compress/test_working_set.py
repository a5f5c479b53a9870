"""What a compaction keeps, against versions written with loops."""

import torch
from torch import Tensor

from ringkv.base.cache_spec import CacheSpec, LayerGroup, Plane
from ringkv.base.workspace import Workspace
from ringkv.cache.compress.staged_prompt import GroupView, StagedPrompt
from ringkv.cache.compress.working_set import WorkingSet, votes

LAYERS, HEADS, N, WIDTH, LEFT = 2, 3, 60, 8, 40


def prompt() -> StagedPrompt:
    torch.manual_seed(0)
    keys, values = torch.randn(2, LAYERS, HEADS, N, WIDTH)
    return StagedPrompt([], keys, values + 1, 1.0, lambda *_: (), 0)


def by_loops(values: Tensor) -> list[float]:
    """Return the votes of one head's values [n, D]."""
    unit = [value / value.norm() for value in values]
    middle = sum(unit) / torch.tensor(float(len(unit)))
    apart = [float(1 - value @ middle / middle.norm()) for value in unit]
    pooled = [apart[max(0, at - 7) : at + 8] for at in range(len(apart))]
    return [sum(near) / len(near) for near in pooled]


def test_votes_are_the_differences_of_values_from_their_mean_direction_pooled_over_neighbours() -> None:
    staged = prompt()
    want = torch.tensor([by_loops(head) for layer in staged.values for head in layer])
    torch.testing.assert_close(votes(staged, 0, N), want)
    assert torch.equal(votes(staged, 0, N), votes(staged._replace(keys=-staged.keys), 0, N))


def test_the_first_and_newest_entries_stay_and_the_best_of_the_others() -> None:
    staged, spec = prompt(), CacheSpec(Plane(HEADS, WIDTH), Plane(HEADS, WIDTH), 1.0)
    views = [
        GroupView(LayerGroup((0, 1), spec, 1, window), lambda: staged) for window in (None, 16)
    ]  # a group without and one with a sliding window
    places, none = WorkingSet(4, 10).places(views, Workspace(N, LEFT))
    assert none is None
    assert places is not None
    given = votes(staged, 4, N - 10).view(LAYERS, HEADS, -1)
    for layer in range(LAYERS):
        for head in range(HEADS):
            ranked = sorted(range(4, N - 10), key=lambda at, own=given[layer, head]: (-float(own[at - 4]), at))
            want = sorted([*range(4), *ranked[: LEFT - 14], *range(N - 10, N)])
            assert places[layer, head].tolist() == want


def test_recent_entries_give_way_to_leading_ones_and_one_is_selected() -> None:
    assert WorkingSet.of(Workspace(N, LEFT), 4, 10) == (4, 10)
    assert WorkingSet.of(Workspace(N, LEFT), 4, 1) == (4, LEFT // 8)
    assert WorkingSet.of(Workspace(N, LEFT), 20, 100) == (20, LEFT - 20 - 1)
