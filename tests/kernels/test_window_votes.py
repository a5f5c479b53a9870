"""The votes of the last queries: the C++ kernel and the reference against explicit sums."""

import pytest
import torch

from ringkv.kernels import window_votes

SCALE = 0.21  # not 1 / sqrt of a head_dim
CASES = [  # heads, groups, window, prompt, width
    (2, 3, 32, 1500, 64),  # several batches of keys
    (3, 3, 64, 300, 64),
    (1, 1, 20, 20, 32),  # as many queries as keys
    (2, 6, 16, 130, 128),
]


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_each_key_gets_the_softmax_shares_of_all_queries_that_see_it(dtype: torch.dtype, case: tuple[int, ...]) -> None:
    heads, groups, window, n, width = case
    torch.manual_seed(n)
    q, keys = torch.randn(heads, groups, window, width).to(dtype), torch.randn(heads, n, width).to(dtype)
    want = torch.zeros(heads, n, dtype=torch.float64)
    for h in range(heads):
        for g in range(groups):
            for w in range(window):
                stop = n - window + w + 1
                want[h, :stop] += (keys[h, :stop].double() @ q[h, g, w].double() * SCALE).softmax(0)
    got = window_votes.window_votes(q, keys, SCALE)
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=2e-3 if dtype == torch.float32 else 1e-2)


def test_the_reference_rounds_no_score_to_bfloat16() -> None:
    torch.manual_seed(0)
    q, keys = 9 * torch.randn(2, 3, 32, 64).bfloat16(), torch.randn(2, 500, 64).bfloat16()
    exact = window_votes.reference(q.float(), keys.float(), SCALE)
    assert torch.equal(window_votes.reference(q, keys, SCALE), exact)
