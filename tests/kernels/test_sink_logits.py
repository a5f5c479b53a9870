"""Sink logits against a softmax over the scores and one more column."""

import pytest
import torch

from ringkv.kernels.attended import Attended
from ringkv.kernels.sink_logits import add_sink_logits, reference

N, H, G, D, KEYS = 5, 2, 3, 32, 9


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sink_logit_is_a_column_of_the_softmax_without_a_value(dtype: torch.dtype) -> None:
    scores, values, sinks = torch.randn(N, H, G, KEYS), torch.randn(H, KEYS, D), torch.randn(H * G)
    whole = torch.cat((scores, sinks.view(H, G, 1).expand(N, -1, -1, -1)), -1).softmax(-1)[..., :KEYS]
    out = (scores.softmax(-1) @ values).to(dtype)
    found = add_sink_logits(Attended(out, scores.logsumexp(-1)), sinks)
    assert found.dtype == dtype
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(found.float(), whole @ values, atol=tolerance, rtol=tolerance)


@pytest.mark.usefixtures("compiled")
def test_a_row_without_keys_stays_zero() -> None:
    nothing = Attended(torch.zeros(N, H, G, D), torch.full((N, H, G), float("-inf")))
    for add in (lambda sinks: add_sink_logits(nothing, sinks), lambda sinks: reference(*nothing, sinks)):
        assert torch.equal(add(torch.randn(H * G)), nothing.out)
