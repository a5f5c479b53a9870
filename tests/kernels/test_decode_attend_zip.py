"""Decode attention over slots in 4 and 2 bits, against float64 attention over the decoded tokens."""

import pytest
import torch
from torch import Tensor

from ringkv.base.zip_sizes import CHUNK
from ringkv.kernels import decode_attend_reference
from ringkv.kernels.constants import BUFFERED, FIRST, WIDTH_STEP
from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.slots import Rows, Slots
from ringkv.kernels.zip_slots import ZipSlots, places
from ringkv.kernels.zip_tokens import append, decoded
from tests.kernels.steps import Attend
from tests.kernels.zip_slots import filled, made

pytestmark = pytest.mark.usefixtures("compiled")
WAYS: dict[str, Attend] = {"operator": decode_attend, "reference": decode_attend_reference.decode_attend}
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 1e-2, torch.float16: 2e-3}
SHAPES = [
    (2, 6, 128, [(800, 700), (0, 0), (3, 3)]),
    (1, 1, 32, [(520, 100), (200, 200)]),
    (3, 3, 64, [(301, 40)]),
    (2, 8, 96, [(150, 0), (104, 104)]),
    (2, 5, 40, [(130, 60)]),
]


def attend(
    way: str, q: Tensor, k: Tensor, v: Tensor, slots: ZipSlots, slot: Tensor, live: Tensor
) -> tuple[Tensor, Tensor]:
    """Run a step. Its entries are not used."""
    rows = Rows(slot, torch.full_like(slot, -1), live)
    return WAYS[way](q, k, v, Slots("zipcache", tuple(slots)), rows, q.shape[-1] ** -0.5)


def rounded(x: Tensor) -> Tensor:
    """Return vectors [..., D] rounded to 8 bits, as the operator rounds queries."""
    step = x.abs().amax(-1, keepdim=True) / 127
    return (x / step).round() * step


def scores_of(q: Tensor, slot: ZipSlots, keys: Tensor, is_rounded: bool) -> Tensor:
    """Return float64 [H, G, n]. The operator rounds a query times the steps of a chunk's channels.

    It multiplies levels that are counted from the middle of their range, and adds the exact rest.
    """
    scores, first = torch.einsum("hgd,hnd->hgn", q.double(), keys), sum(slot.held()[:2])
    for at in places(slot.held()):
        steps, minima = slot.key_channels[:, at.chunk].double().unflatten(1, (2, 2)).unbind(2)
        for step, minimum, middle, count in zip(
            steps.unbind(1), minima.unbind(1), (7.5, 1.5), (at.highs, at.lows), strict=True
        ):
            own, rest = slice(first, first + count), (minimum + middle * step)[:, None]
            levels = (keys[:, own] - rest) / step[:, None]
            near = torch.einsum("hgd,hnd->hgn", rounded(q.double() * step[:, None]), levels)
            if is_rounded:
                scores[..., own] = near + (q.double() * rest).sum(-1, keepdim=True)
            first += count
    return scores * q.shape[-1] ** -0.5


def by_hand(q: Tensor, slot: ZipSlots, is_rounded: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return out [H, G, D] and lse [H, G] of float64 attention, and the mean attention to each key in the buffer."""
    keys, values = (x.double() for x in decoded(slot))
    scores = scores_of(q, slot, keys, is_rounded)
    weights, count = scores.softmax(-1), slot.held()
    buffer = weights[..., count[FIRST] : count[FIRST] + count[BUFFERED]].mean(1)
    return torch.einsum("hgn,hnd->hgd", weights, values), scores.logsumexp(-1), buffer


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("heads", "groups", "width", "prompts"), SHAPES)
def test_it_equals_attention_over_the_decoded_tokens(
    way: str, dtype: torch.dtype, heads: int, groups: int, width: int, prompts: list[tuple[int, int]]
) -> None:
    rows, tolerance = len(prompts), TOLERANCE[dtype]
    slots = made(rows + 1, heads, width, 830, dtype)
    slot = torch.arange(1, rows + 1, dtype=torch.int32).flip(0)
    for at, (n, fixed) in zip(slot.tolist(), prompts, strict=True):
        filled(slots, at, n, fixed, seed=at)
    q = torch.randn(rows, heads, groups, width).to(dtype)
    k, v = (torch.randn(rows, heads, width).to(dtype) for _ in range(2))
    live = torch.tensor([n + 1 if n else 0 for n, _ in prompts], dtype=torch.int32)
    twin = ZipSlots(*(tensor.clone() for tensor in slots))
    out, lse = attend(way, q, k, v, slots, slot, live)
    for row, (at, count) in enumerate(zip(slot.tolist(), live.tolist(), strict=True)):
        if not count:
            assert not out[row].any()
            assert (lse[row] == -torch.inf).all()
            continue
        own = twin.of(at)
        append(own, k[row], v[row], count)
        is_rounded = way == "operator" and width % WIDTH_STEP == 0
        expected, log_sum, buffer = by_hand(q[row], own, is_rounded)
        torch.testing.assert_close(out[row].double(), expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(lse[row].double(), log_sum, rtol=1e-4, atol=1e-4)
        before, after = own.attention.double(), slots.of(at).attention.double()
        buffered = own.held()[BUFFERED]
        torch.testing.assert_close((after - before)[:, :buffered], buffer, rtol=1e-3, atol=1e-5)
        own.attention.copy_(slots.of(at).attention)
    for ours, theirs in zip(slots, twin, strict=True):
        assert torch.equal(ours.nan_to_num(-1), theirs.nan_to_num(-1))


@pytest.mark.parametrize("way", WAYS)
def test_a_full_buffer_is_encoded_like_the_reference_does_it(way: str) -> None:
    """The chunk takes a free place first, then that of the oldest."""
    slots = made(2, 2, 64, 240)
    for at in range(2):
        filled(slots, at, 300 if at else 120, 20, seed=at)
    slots.plain_keys[:, 0, :, 3] = 0  # a channel without a spread
    slots.plain_values[:, 0, :, 5] = 0
    slots.counts[..., BUFFERED] = CHUNK
    slots.attention.uniform_()
    slots.attention[0, 0] = 0.5 * torch.arange(CHUNK, 0, -1)  # all are equally salient
    slots.plain_keys.nan_to_num_(1.5)
    slots.plain_values.nan_to_num_(1.5)
    twin = ZipSlots(*(tensor.clone() for tensor in slots))
    slot, live = torch.arange(2, dtype=torch.int32), torch.tensor([121, 200], dtype=torch.int32)
    for seed in range(2):
        torch.manual_seed(seed)
        q, k, v = torch.randn(2, 2, 3, 64), torch.randn(2, 2, 64), torch.randn(2, 2, 64)
        attend(way, q, k, v, slots, slot, live)
        for at in range(2):
            append(twin.of(at), k[at], v[at], int(live[at]))
            twin.attention[at] = slots.attention[at]
        assert all(torch.equal(one.nan_to_num(-1), two.nan_to_num(-1)) for one, two in zip(slots, twin, strict=True))
        for one in (slots, twin):
            one.counts[..., BUFFERED] = CHUNK
        live = torch.tensor([221, 200], dtype=torch.int32)


@pytest.mark.parametrize("way", WAYS)
def test_a_row_has_the_same_bits_beside_any_neighbours(way: str) -> None:
    slots = made(3, 2, 64, 830)
    for at, n in enumerate((800, 20, 333)):
        filled(slots, at, n, n // 2, seed=at)
    q, k, v = torch.randn(3, 2, 6, 64), torch.randn(3, 2, 64), torch.randn(3, 2, 64)
    slot, live = torch.arange(3, dtype=torch.int32), torch.tensor([801, 21, 334], dtype=torch.int32)
    twin = ZipSlots(*(tensor.clone() for tensor in slots))
    together, _ = attend(way, q, k, v, twin, slot, live)
    for row in range(3):
        one = slice(row, row + 1)
        alone, _ = attend(way, q[one], k[one], v[one], slots, slot[one], live[one])
        assert torch.equal(alone[0], together[row])
    assert all(torch.equal(one.nan_to_num(-1), two.nan_to_num(-1)) for one, two in zip(slots, twin, strict=True))
