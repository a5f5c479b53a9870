"""Votes weighed by values, against CriticalKV's algorithm written with loops."""

import pytest
import torch
from torch import Tensor

from ringkv.cache.compress.by_head import top_of_each
from ringkv.cache.compress.critical import LEAST, PIECE, output_norms, weighed
from ringkv.cache.compress.staged_prompt import StagedPrompt
from ringkv.cache.compress.vote_reduction import NoReduction

LAYERS, HEADS, GROUPS, WIDTH, HIDDEN, N = 2, 3, 2, 4, 10, 40
COUNTS = torch.tensor([[5, 12, 1], [8, 3, 7]])


def by_hand(votes: list[float], norms: list[float], count: int) -> set[int]:
    """Half of the tokens by votes, the others by votes times norms; of equal ones the earlier first."""
    tokens = sorted(range(len(votes)), key=lambda j: (-votes[j], j))
    found = tokens[: count // 2]
    rest = sorted(tokens[count // 2 :], key=lambda j: (-(votes[j] + LEAST) * norms[j], j))
    return {*found, *rest[: count - len(found)]}


@pytest.mark.parametrize("seed", range(4))
def test_half_is_selected_by_votes_and_half_by_votes_times_norms(seed: int) -> None:
    torch.manual_seed(seed)
    votes, norms = torch.randint(0, 9, (LAYERS, HEADS, N)).float(), torch.rand(LAYERS, HEADS, N)
    found = top_of_each(weighed(votes, norms, COUNTS), COUNTS)
    for layer in range(LAYERS):
        for head in range(HEADS):
            here = layer, head
            want = by_hand(votes[here].tolist(), norms[here].tolist(), int(COUNTS[here]))
            assert set(found[here].nonzero()[:, 0].tolist()) == want
    assert (found != top_of_each(votes, COUNTS)).any()  # the norms matter


def test_a_protected_token_stays_whatever_its_value_is() -> None:
    votes, norms = torch.rand(LAYERS, HEADS, N), torch.rand(LAYERS, HEADS, N)
    votes[..., 30] = float("inf")
    norms[..., 30] = 0
    assert top_of_each(weighed(votes, norms, COUNTS), COUNTS)[..., 30].all()


def staged(values: Tensor, output: Tensor) -> StagedPrompt:
    return StagedPrompt(
        [], values, values, 1.0, values.shape[2], [], lambda *_: (), 0, NoReduction(), output.__getitem__
    )


@pytest.mark.parametrize("joined", [False, True])
def test_a_norm_is_the_mean_over_query_heads_of_what_the_value_adds_to_the_output(joined: bool) -> None:
    values, output = torch.randn(LAYERS, HEADS, N, WIDTH), torch.randn(LAYERS, HEADS, GROUPS, WIDTH, HIDDEN)
    found = output_norms(staged(values, output), 5, 30, joined)
    for layer in range(LAYERS):
        for j in range(5, 30):
            own = torch.zeros(HEADS)
            for head in range(HEADS):
                for group in range(GROUPS):
                    added = [float(values[layer, head, j] @ column) for column in output[layer, head, group].T]
                    own[head] += sum(map(abs, added)) / GROUPS
            want = own.mean().expand(HEADS) if joined else own
            torch.testing.assert_close(found[layer, :, j - 5], want, atol=1e-5, rtol=1e-5)


def test_a_long_prompts_norms_are_those_of_its_tokens() -> None:
    values, output = torch.randn(1, 1, 2 * PIECE + 5, WIDTH), torch.randn(1, 1, GROUPS, WIDTH, HIDDEN)
    prompt = staged(values, output)
    n = values.shape[2]
    each = [output_norms(prompt, at, min(at + 100, n), False) for at in range(0, n, 100)]
    torch.testing.assert_close(output_norms(prompt, 0, n, False), torch.cat(each, 2))
