"""Attention over encoded latents against float64 attention over the decoded ones."""

import pytest
import torch
from torch import Tensor

from ringkv.kernels.encoded_attend import NO_KEY
from ringkv.kernels.encoded_latents import ATTEND, ENCODINGS, reference
from ringkv.kernels.library import is_native
from tests.kernels.products import random_bf16

pytestmark = pytest.mark.usefixtures("compiled")
SCALE, SLOTS, ENTRIES, LIVE = 0.05, 6, 300, [1, 300, 0, 129]
FIRST = 4  # places for exact latents, of which a slot has two


def made(name: str, width: int) -> list[Tensor]:
    """Return latents, scales and centers of slots; some channels are large, and all have a mean."""
    torch.manual_seed(0)
    vectors = torch.randn(SLOTS, 1, ENTRIES, width) * torch.rand(width) * 3
    centers = torch.randn(SLOTS, 1, 1 + FIRST, width)
    centers[:, :, 2:4] = NO_KEY
    return [*ENCODINGS[name].encode(vectors), centers.flatten(2)]


def step(heads: int, width: int, rows: int = len(LIVE)) -> list[Tensor]:
    """Queries, new latents, slots, entries and live lengths of a step."""
    live = torch.tensor(LIVE[:rows], dtype=torch.int32)
    slot = torch.arange(rows, 0, -1, dtype=torch.int32)
    return [random_bf16(rows, 1, heads, width), random_bf16(rows, 1, width), slot, (live // 2).int(), live]


@pytest.mark.parametrize("way", ["attend", "reference"])
@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize(("heads", "width"), [(20, 576), (3, 96), (70, 160)])
def test_it_equals_attention_over_the_decoded_latents(way: str, name: str, heads: int, width: int) -> None:
    """Groups have 128 elements, and the last one the rest: 64, 96 and 32."""
    planes, (q, k, slot, entry, live) = made(name, width), step(heads, width)
    given = q, k, *planes, slot, entry, live, SCALE
    out, lse = ATTEND[name](*given) if way == "attend" else reference(ENCODINGS[name], *given)
    for row, (at, count) in enumerate(zip(slot.tolist(), LIVE, strict=True)):
        if not count:
            assert not out[row].any()
            assert (lse[row] == -torch.inf).all()
            continue
        center, *first = planes[2][at, 0].view(1 + FIRST, width).double()
        latents = ENCODINGS[name].decode(planes[0][at, 0, :count], planes[1][at, 0, :count]).double()
        for place in {0, 3} & set(range(count)):
            latents[place] = first[place]
        scores = SCALE * q[row, 0].double() @ (latents + center).T
        want = scores.softmax(-1) @ (latents + center)
        torch.testing.assert_close(out[row, 0].double(), want, rtol=0.02, atol=0.02)
        torch.testing.assert_close(lse[row, 0].double(), scores.logsumexp(-1), rtol=0.01, atol=0.01)


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("width", [576, 96])
def test_the_kernel_writes_the_bytes_that_the_reference_writes(name: str, width: int) -> None:
    planes, (q, k, *rows) = made(name, width), step(2, width)
    k *= torch.logspace(-4, 4, len(k))[:, None, None]
    twin = [plane.clone() for plane in planes]
    ATTEND[name](q, k, *planes, *rows, SCALE)
    reference(ENCODINGS[name], q, k, *twin, *rows, SCALE)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(planes[:2], twin[:2], strict=True))
    assert not torch.equal(planes[0], made(name, width)[0])


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_row_has_the_same_bits_beside_any_neighbours(name: str) -> None:
    planes, given = made(name, 160), step(70, 160)
    together = ATTEND[name](*given[:2], *[plane.clone() for plane in planes], *given[2:], SCALE)
    for row in range(len(LIVE)):
        q, k, *own = (one[row : row + 1] for one in given)
        alone = ATTEND[name](q, k, *planes, *own, SCALE)
        assert torch.equal(alone.out[0], together.out[row])
        assert torch.equal(alone.lse[0], together.lse[row])


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_kernel_is_compiled_if_there_is_one_for_plain_latents(name: str) -> None:
    assert is_native(f"decode_attend_latent_{name}_tiles") == is_native("decode_attend_latent_tiles")
