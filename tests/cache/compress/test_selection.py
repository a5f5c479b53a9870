"""The attention by which zipcache gives tokens their bits, against the paper's formula over whole attention maps."""

import pytest
import torch
from torch import Tensor

from ringkv.cache.compress.selection import saliency
from ringkv.cache.compress.staged_prompt import StagedPrompt

LAYERS, HEADS, GROUPS, WIDTH, N, SCALE = 2, 2, 3, 32, 40, 0.3


def paper(attention: Tensor, probes: list[int]) -> Tensor:
    """Return float64 [n] by arXiv 2405.14256, equation 8: rows `probes` of one head's causal attention [n, n]."""
    total, seen = torch.zeros(len(attention)).double(), torch.zeros(len(attention)).double()
    for probe in probes:
        total += attention[probe]
        seen[: probe + 1] += 1
    return total / seen.clamp(min=1)


def staged(window: int) -> tuple[StagedPrompt, Tensor]:
    """Return a prompt with its last queries, and its whole attention float64 [L, H, G, n, n]."""
    q, keys = torch.randn(LAYERS, HEADS, GROUPS, N, WIDTH), torch.randn(LAYERS, HEADS, N, WIDTH)
    scores = SCALE * torch.einsum("lhgqd,lhkd->lhgqk", q.double(), keys.double())
    attention = scores.masked_fill(torch.ones(N, N).triu(1).bool(), float("-inf")).softmax(-1)
    last = [layer[:, :, N - window :].contiguous() for layer in q]
    return StagedPrompt(last, keys, keys, SCALE, lambda *_: (), 0), attention


@pytest.mark.parametrize("window", [1, 8, N])
def test_it_is_the_papers_with_the_last_queries_as_probes(window: int) -> None:
    prompt, attention = staged(window)
    expected = torch.stack(
        [torch.stack([paper(head.mean(0), list(range(N - window, N))) for head in layer]) for layer in attention]
    )
    torch.testing.assert_close(saliency(prompt).double(), expected, rtol=1e-4, atol=1e-6)


def test_equal_attention_gives_the_same_saliency_to_old_and_new_tokens_that_the_same_probes_see() -> None:
    """Sums over probes would favour what more of them see: the paper's reason to divide."""
    prompt, _ = staged(8)
    flat = prompt._replace(keys=torch.zeros_like(prompt.keys))
    found = saliency(flat)
    torch.testing.assert_close(found[..., : N - 7], torch.full_like(found[..., : N - 7], found[0, 0, 0].item()))
    assert (found[..., -1] > 0.9 * found[..., 0]).all()
