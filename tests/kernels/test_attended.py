"""Partial softmaxes merged, against the softmax over all keys."""

import torch

from ringkv.kernels.attended import Attended, merge


def attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Attended:
    scores = (q @ keys.T).double()
    return Attended((scores.softmax(-1) @ values.double()).float(), scores.logsumexp(-1).float())


def test_attention_over_two_parts_is_attention_over_all_keys() -> None:
    q, keys, values = torch.randn(5, 16), torch.randn(40, 16), torch.randn(40, 8)
    for cut in (1, 17, 39):
        found = merge(attend(q, keys[:cut], values[:cut]), attend(q, keys[cut:], values[cut:]))
        wanted = attend(q, keys, values)
        torch.testing.assert_close(found.out, wanted.out, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(found.lse, wanted.lse, atol=1e-6, rtol=1e-6)


def test_an_empty_part_changes_nothing_and_two_give_zero() -> None:
    empty = Attended(torch.zeros(5, 8), torch.full((5,), float("-inf")))
    whole = attend(torch.randn(5, 16), torch.randn(40, 16), torch.randn(40, 8))
    for found in (merge(whole, empty), merge(empty, whole)):
        torch.testing.assert_close(found.out, whole.out)
        torch.testing.assert_close(found.lse, whole.lse)
    nothing = merge(empty, empty)
    assert not nothing.out.any()
    assert nothing.lse.isneginf().all()
