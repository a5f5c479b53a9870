"""8-bit decode attention against float64 attention over the decoded entries."""

import numpy as np
import pytest
import torch

from ringkv.kernels.decode_attend import WIDTH_STEP
from ringkv.kernels.decode_attend_int8 import decode, decode_attend_int8, encode, reference
from ringkv.kernels.library import is_native

pytestmark = pytest.mark.usefixtures("compiled")
WAYS = {"native": decode_attend_int8, "reference": reference}
DTYPES = {torch.float32: 2e-3, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def made(slots: int, heads: int, entries: int, width: int, seed: int = 0) -> list[torch.Tensor]:
    """Return a cache: keys and scales, values and scales (entries of many magnitudes), centers of the keys."""
    torch.manual_seed(seed)
    planes = []
    for _ in range(2):
        sizes = torch.rand(slots, heads, entries, 1) * 3 + 0.1
        planes += encode(torch.randn(slots, heads, entries, width) * sizes)
    return [*planes, torch.randn(slots, heads, width)]


def hadamard(width: int) -> np.ndarray:
    """Return [width, width] by Sylvester's construction: blocks of the largest power of two that divides the width."""
    block = np.ones((1, 1))
    while width % (2 * len(block)) == 0:
        block = np.kron([[1, 1], [1, -1]], block)
    return np.kron(np.eye(width // len(block)), block / np.sqrt(len(block)))


def by_hand(
    q: torch.Tensor, rounded: torch.Tensor, planes: list[torch.Tensor], slot: int, live: int, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return out [H, G, D] and lse [H, G] of one row; `rounded` are the queries that are multiplied with the keys."""
    keys, values = (
        (planes[i][slot].double() * planes[i + 1][slot][..., None].double()).numpy()[:, :live] @ hadamard(q.shape[-1])
        for i in (0, 2)
    )
    common = np.einsum("hgd,hd->hg", q.double().numpy(), planes[4][slot].double().numpy())
    scores = scale * (np.einsum("hgd,hnd->hgn", rounded.double().numpy(), keys) + common[..., None])
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    return np.einsum("hgn,hnd->hgd", weights / total, values), (np.log(total) + top)[..., 0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "groups", "width", "lives"),
    [
        (2, 6, 128, [1, 300, 0, 513]),
        (1, 1, 32, [7, 256, 257]),
        (3, 3, 64, [31, 2]),
        (2, 8, 96, [400, 16]),
        (1, 2, 256, [600]),
        (1, 4, 512, [290]),
        (2, 5, 40, [33, 1]),
    ],
)
def test_it_equals_attention_over_the_decoded_entries(
    way: str, dtype: torch.dtype, heads: int, groups: int, width: int, lives: list[int]
) -> None:
    rows, entries = len(lives), max(lives) + 5
    planes = made(rows + 1, heads, entries, width)
    q = torch.randn(rows, heads, groups, width).to(dtype)
    k, v = (torch.randn(rows, heads, width).to(dtype) for _ in range(2))
    slot = torch.arange(1, rows + 1, dtype=torch.int32).flip(0)
    entry = torch.tensor([max(0, live // 2) for live in lives], dtype=torch.int32)
    live = torch.tensor(lives, dtype=torch.int32)
    before = [plane.clone() for plane in planes]
    out, lse = WAYS[way](q, k, v, *planes, slot, entry, live, width**-0.5)
    for row, count in enumerate(lives):
        at = int(slot[row])
        if count == 0:
            assert not out[row].any()
            assert (lse[row] == -torch.inf).all()
            assert all(torch.equal(plane[at], old[at]) for plane, old in zip(planes, before, strict=True))
            continue
        rounded = decode(*encode(q[row])) if way == "native" and width % WIDTH_STEP == 0 else q[row]
        expected, log_sum = by_hand(q[row], rounded, planes, at, count, width**-0.5)
        torch.testing.assert_close(out[row].double().numpy(), expected, rtol=DTYPES[dtype], atol=DTYPES[dtype])
        torch.testing.assert_close(lse[row].double().numpy(), log_sum, rtol=1e-3, atol=2e-3)
        for whole, new in ((0, k - planes[4][slot.long()]), (2, v)):
            written = planes[whole][at, :, entry[row]].double() * planes[whole + 1][at, :, entry[row], None].double()
            rotated = new[row].double() @ torch.from_numpy(hadamard(width))
            largest = rotated.abs().amax(-1, keepdim=True)
            assert ((written - rotated).abs() <= largest / 127 * 0.501).all()
    assert torch.equal(planes[0][0], before[0][0])  # a slot that no row names


def test_the_kernel_writes_the_bits_that_encoding_gives() -> None:
    planes = made(2, 2, 20, 64)
    k, v = (torch.randn(2, 2, 64).bfloat16() for _ in range(2))
    slot, entry, live = (torch.tensor(x, dtype=torch.int32) for x in ([0, 1], [3, 19], [9, 20]))
    q = torch.randn(2, 2, 3, 64).bfloat16()
    twin = [plane.clone() for plane in planes]
    decode_attend_int8(q, k, v, *planes, slot, entry, live, 0.1)
    reference(q, k, v, *twin, slot, entry, live, 0.1)
    for ours, theirs in zip(planes, twin, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


def test_a_row_has_the_same_bits_beside_any_neighbours() -> None:
    planes = made(3, 2, 700, 64)
    q, k, v = torch.randn(3, 2, 6, 64), torch.randn(3, 2, 64), torch.randn(3, 2, 64)
    slot, entry = torch.arange(3, dtype=torch.int32), torch.tensor([5, 6, 7], dtype=torch.int32)
    live = torch.tensor([700, 10, 300], dtype=torch.int32)
    together, _ = decode_attend_int8(q, k, v, *[plane.clone() for plane in planes], slot, entry, live, 0.1)
    for row in range(3):
        one = slice(row, row + 1)
        alone, _ = decode_attend_int8(q[one], k[one], v[one], *planes, slot[one], entry[one], live[one], 0.1)
        assert torch.equal(alone[0], together[row])


def test_one_large_channel_does_not_coarsen_the_others() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(50, 128)
    vectors[:, 7] += 100
    off = (decode(*encode(vectors)) - vectors).square().mean().sqrt()
    assert off < 100 / 127 / 12**0.5 / 7  # without rotation it would be 100 / 127 / sqrt(12)


def test_a_vector_of_zeros_and_its_scale_are_zeros() -> None:
    whole, scales = encode(torch.zeros(2, 3, 32))
    assert not whole.any()
    assert not scales.any()
    assert not decode(whole, scales).any()


def test_a_kernel_is_compiled() -> None:
    assert is_native("decode_attend_int8")
