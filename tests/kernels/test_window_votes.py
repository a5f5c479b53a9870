"""The votes of the last queries: the C++ kernel and the reference against explicit sums."""

import pytest
import torch

from ringkv.kernels import window_votes

SCALE = 0.21  # not 1 / sqrt of a head_dim
CASES = [  # heads, groups, window, prompt, width, first key, last key
    (2, 3, 32, 1500, 64, 4, 1200),  # several batches of keys
    (3, 3, 64, 300, 64, 0, 300),  # up to the prompt's end, where queries see different keys
    (1, 1, 20, 50, 32, 40, 50),  # some queries see no key
    (2, 6, 16, 130, 128, 0, 130),
]


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_each_key_gets_the_softmax_shares_of_all_queries_that_see_it(dtype: torch.dtype, case: tuple[int, ...]) -> None:
    heads, groups, window, n, width, first, last = case
    torch.manual_seed(n)
    q, keys = torch.randn(heads, groups, window, width).to(dtype), torch.randn(heads, n, width).to(dtype)
    want = torch.zeros(heads, last - first, dtype=torch.float64)
    for h in range(heads):
        for g in range(groups):
            for w in range(window):
                stop = min(last, n - window + w + 1)
                if stop > first:
                    score = keys[h, first:stop].double() @ q[h, g, w].double() * SCALE
                    want[h, : stop - first] += score.softmax(0)
    got = window_votes.window_votes(q, keys, first, last, SCALE)
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=2e-3 if dtype == torch.float32 else 1e-2)


def test_the_reference_rounds_no_score_to_bfloat16() -> None:
    torch.manual_seed(0)
    q, keys = 9 * torch.randn(2, 3, 32, 64).bfloat16(), torch.randn(2, 500, 64).bfloat16()
    exact = window_votes.reference(q.float(), keys.float(), 0, 500, SCALE)
    assert torch.equal(window_votes.reference(q, keys, 0, 500, SCALE), exact)
