"""The tokens that top_k, top_p and min_p keep, against a sort of the whole vocabulary."""

from itertools import product

import pytest
import torch
from torch import Tensor

from ringkv.base.sampling import SamplerTier
from ringkv.engine.sampling.state import SamplingState
from ringkv.kernels.library import is_native
from ringkv.kernels.sampling import operators
from ringkv.kernels.sampling.tiers import SAMPLERS
from ringkv.kernels.sampling.truncate import truncate

DOUBT = 1e-6  # closer to a bound than this probability, rounding decides


def by_sorting(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> tuple[Tensor, ...]:
    """Return bool [B, V] each, in float64: kept tokens, and tokens so close to a bound that rounding decides."""
    ranked, order = logits.double().sort(descending=True, stable=True)
    ranked = ranked / torch.where(temperature > 0, temperature, 1.0).double()[:, None]
    rank = torch.arange(logits.shape[1])
    keep = (top_k == 0) | (rank < top_k)
    probs = ranked.masked_fill(~keep, float("-inf")).softmax(-1)
    before = probs.cumsum(-1) - probs
    near = (top_p < 1) & ((before - top_p).abs() < DOUBT)
    near |= (min_p > 0) & ((probs / probs[:, :1] - min_p).abs() < DOUBT)
    near[:, 0] = False
    keep = keep & ((top_p == 1) | (before < top_p)) & (probs >= min_p * probs[:, :1])
    keep[:, 0] = True
    nothing = torch.zeros_like(keep)
    return nothing.scatter(1, order, keep), nothing.scatter(1, order, near)


def settings(vocab: int) -> tuple[Tensor, ...]:
    """Return temperature [B]; top_k, top_p, min_p [B, 1]: all combinations."""
    ks = [0, 1, 3, max(1, vocab - 1), vocab, 10 * vocab]
    ps, mins = [1e-30, 0.1, 0.5, 0.9, 0.999, 1.0], [0.0, 0.01, 0.5, 1.0]
    table = torch.tensor(list(product([0.0, 0.3, 1.0, 5.0], ks, ps, mins)))
    return table[:, 0], *table[:, 1:, None].unbind(1)


def shapes(vocab: int) -> dict[str, Tensor]:
    """Logits [V] of many kinds."""
    torch.manual_seed(vocab)
    logits = torch.randn(vocab)
    masked = logits.clone()
    masked[torch.randperm(vocab)[: vocab // 2]] = float("-inf")
    alone = torch.full((vocab,), float("-inf"))
    alone[vocab // 2] = -3.0
    return {
        "random": logits * 3,
        "peaked": logits * 40,
        "flat": torch.zeros(vocab),
        "almost flat": logits * 1e-3 + 7,
        "many ties": (logits * 3).round(),
        "ties of bfloat16": (logits * 3).bfloat16().float(),
        "two values": (logits > 1).float(),
        "both zeros": torch.where(logits > 0, 0.0, -0.0),
        "masked": masked * 3,
        "one token": alone,
        "large": logits * 1e30,
        "tiny": logits * 1e-40,
    }


def kept(*arguments: Tensor) -> Tensor:
    """Return bool [B, V]. Kept tokens must have their logits unchanged."""
    logits, result = arguments[0], truncate(*arguments)
    assert torch.equal(result, torch.where(result > float("-inf"), logits, float("-inf")))
    return result > float("-inf")


def assert_as_sorted(logits: Tensor, *about: Tensor) -> None:
    ours, (wanted, near) = kept(logits, *about), by_sorting(logits, *about)
    finite = logits > float("-inf")  # a forbidden token stays forbidden, kept or not
    wrong = (ours != wanted) & finite & ~near
    assert not wrong.any(), f"rows {wrong.any(-1).nonzero()[:, 0].tolist()}"
    assert_beginning_of_the_order(logits, ours)


def assert_beginning_of_the_order(logits: Tensor, ours: Tensor) -> None:
    order = logits.argsort(descending=True, stable=True)
    in_order = ours.gather(1, order).int()
    assert (in_order.diff(dim=-1) <= 0).all()
    assert in_order[:, 0].all()


@pytest.mark.parametrize("vocab", [1, 2, 40, 1000])
@pytest.mark.parametrize("shape", shapes(4))
def test_it_keeps_the_tokens_that_sorting_keeps(vocab: int, shape: str) -> None:
    about = settings(vocab)
    assert_as_sorted(shapes(vocab)[shape].repeat(len(about[0]), 1), *about)


@pytest.mark.parametrize("vocab", [49152, 151936])
def test_it_keeps_them_in_real_vocabulary_sizes(vocab: int) -> None:
    torch.manual_seed(1)
    logits = torch.randn(6, vocab) * torch.tensor([1.0, 2.0, 3.0, 3.0, 5.0, 20.0])[:, None]
    logits[3] = logits[3].bfloat16().float()
    top_k, top_p = torch.tensor([0.0, 0, 50, 0, 0, 5000]), torch.tensor([0.95, 0.5, 1, 0.95, 0.99, 0.9])
    min_p = torch.tensor([0.0, 0, 0, 0, 0.001, 0])
    assert_as_sorted(logits, torch.tensor([1.0, 0.7, 1, 1, 1, 2]), top_k[:, None], top_p[:, None], min_p[:, None])


def test_of_equal_logits_those_with_lower_ids_are_kept() -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0]])
    one, none = torch.ones(1, 1), torch.zeros(1, 1)
    assert kept(logits, torch.ones(1), one * 3, one, none).tolist() == [[True, True, False, True, False]]
    halves = torch.zeros(1, 4)
    assert kept(halves, torch.ones(1), none, one * 0.5, none).tolist() == [[True, True, False, False]]
    assert kept(halves, torch.ones(1), none, one * 0.51, none).tolist() == [[True, True, True, False]]
    assert kept(halves, torch.ones(1), one, one * 0.51, none).tolist() == [[True, False, False, False]]


def test_a_top_p_that_is_zero_in_float32_keeps_the_highest() -> None:
    logits, none = torch.tensor([[1.0, 3.0, 2.0]]), torch.zeros(1, 1)
    assert kept(logits, torch.ones(1), none, torch.full((1, 1), 1e-50), none).tolist() == [[False, True, False]]


def test_a_row_does_not_depend_on_its_neighbours_bit_for_bit() -> None:
    """Each row has the same bits beside any other rows."""
    torch.manual_seed(3)
    logits, about = torch.randn(12, 1000) * 3, [one[100:544:37] for one in settings(1000)]
    together = truncate(logits, *about)
    for row in range(len(logits)):
        one = slice(row, row + 1)
        others = torch.randn(12, 1000) * 50
        others[row] = logits[row]
        assert torch.equal(truncate(others, *(x[one].expand(12, *x.shape[1:]) for x in about))[row], together[row])


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("vocab", [1, 2, 40, 1000])
@pytest.mark.parametrize("shape", shapes(4))
def test_the_native_operator_samples_among_the_tokens_that_are_kept(vocab: int, shape: str) -> None:
    """It truncates only as far as a sampled token needs. Each row has another combination of settings."""
    assert is_native("sample")
    temperature, *limits = settings(vocab)
    slots, state = len(temperature), SamplingState.neutral(len(temperature), vocab, torch.device("cpu"))
    state.params[:, :3] = torch.cat(limits, 1)
    state.seed[:], state.temperature[:], state.tier[:] = torch.arange(slots), temperature, int(SamplerTier.TRUNCATED)
    logits, free = shapes(vocab)[shape].repeat(slots, 1), torch.full((slots,), -1)
    for step in range(2):
        inputs = state.inputs(logits, free, torch.full((slots,), step))
        assert torch.equal(operators.sample(*inputs[:-1]), SAMPLERS[SamplerTier.TRUNCATED](inputs)[0])
