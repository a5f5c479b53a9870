"""Attention over latents of each encoding against float64 attention over the decoded ones."""

import pytest
import torch
from torch import Tensor

from ringkv.base.cache_spec import PlaneFormat
from ringkv.kernels import decode_attend_reference
from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.encoding import ENCODINGS, LATENT_ENCODINGS, NO_KEY
from ringkv.kernels.slots import Rows, Slots, mapped
from tests.kernels.products import random_bf16
from tests.kernels.steps import Attend

pytestmark = pytest.mark.usefixtures("compiled")
WAYS: dict[str, Attend] = {"operator": decode_attend, "reference": decode_attend_reference.decode_attend}
SCALE, SLOTS, ENTRIES, LIVE = 0.05, 6, 300, [1, 300, 0, 129]
FIRST = 4  # places for exact latents, of which a slot has two


def made(encoding: PlaneFormat, width: int, dtype: torch.dtype = torch.bfloat16) -> Slots:
    """Return slots; some channels are large, and all have a mean."""
    torch.manual_seed(0)
    vectors = (torch.randn(SLOTS, 1, ENTRIES, width) * torch.rand(width) * 3).to(dtype)
    centers = torch.randn(SLOTS, 1, 1 + FIRST, width)
    centers[:, :, 2:4] = NO_KEY
    form = LATENT_ENCODINGS[encoding]
    return Slots(encoding, form.encode(vectors), centers.flatten(2) if form.has_centers else None)


def step(heads: int, width: int) -> tuple[Tensor, Tensor, Rows]:
    """Queries, new latents and rows of a step."""
    live = torch.tensor(LIVE, dtype=torch.int32)
    rows = Rows(torch.arange(len(LIVE), 0, -1, dtype=torch.int32), (live // 2).int(), live)
    return random_bf16(len(LIVE), 1, heads, width), random_bf16(len(LIVE), 1, width), rows


def decoded(slots: Slots, slot: int, count: int, width: int) -> Tensor:
    """Return float64 [count, D]."""
    latents = LATENT_ENCODINGS[slots.encoding].decode(*(plane[slot, 0, :count] for plane in slots.planes)).double()
    if slots.centers is None:
        return latents
    center, *first = slots.centers[slot, 0].view(1 + FIRST, width).double()
    for place in {0, 3} & set(range(count)):
        latents[place] = first[place]
    return latents + center


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("encoding", LATENT_ENCODINGS)
@pytest.mark.parametrize(("heads", "width"), [(20, 576), (3, 96), (70, 160), (4, 48)])
def test_a_step_attends_to_latents_which_are_values_too(
    way: str, encoding: PlaneFormat, heads: int, width: int
) -> None:
    """Groups have 128 elements, and the last one the rest: 64, 96, 32 and 48."""
    slots, (q, k, rows) = made(encoding, width), step(heads, width)
    out, lse = WAYS[way](q, k, None, slots, rows, SCALE)
    for row, (slot, count) in enumerate(zip(rows.slot.tolist(), LIVE, strict=True)):
        if not count:
            assert not out[row].any()
            assert (lse[row] == -torch.inf).all()
            continue
        latents = decoded(slots, slot, count, width)
        scores = SCALE * q[row, 0].double() @ latents.T
        torch.testing.assert_close(out[row, 0].double(), scores.softmax(-1) @ latents, rtol=0.02, atol=0.02)
        torch.testing.assert_close(lse[row, 0].double(), scores.logsumexp(-1), rtol=0.01, atol=0.01)


@pytest.mark.parametrize("encoding", LATENT_ENCODINGS)
@pytest.mark.parametrize("width", [576, 96])
def test_the_kernel_writes_the_bytes_that_the_reference_writes(encoding: PlaneFormat, width: int) -> None:
    slots, (q, k, rows) = made(encoding, width), step(2, width)
    k *= torch.logspace(-4, 4, len(k))[:, None, None]
    before, twin = (mapped(slots, Tensor.clone) for _ in range(2))
    decode_attend(q, k, None, slots, rows, SCALE)
    WAYS["reference"](q, k, None, twin, rows, SCALE)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(slots.planes, twin.planes, strict=True))
    assert not torch.equal(slots.planes[0], before.planes[0])


@pytest.mark.parametrize("encoding", LATENT_ENCODINGS)
def test_a_row_has_the_same_bits_beside_any_neighbours(encoding: PlaneFormat) -> None:
    slots, (q, k, rows) = made(encoding, 160), step(70, 160)
    together = decode_attend(q, k, None, mapped(slots, Tensor.clone), rows, SCALE)
    for row in range(len(LIVE)):
        one = slice(row, row + 1)
        alone = decode_attend(q[one], k[one], None, slots, Rows(*(column[one] for column in rows)), SCALE)
        assert torch.equal(alone.out[0], together.out[row])
        assert torch.equal(alone.lse[0], together.lse[row])


def test_an_encoding_without_a_kernel_runs_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes are those of int8, which no kernel of another encoding decodes."""
    slots, (q, k, rows) = made("int8", 160), step(20, 160)
    want = WAYS["reference"](q, k, None, mapped(slots, Tensor.clone), rows, SCALE)
    for encodings in (ENCODINGS, LATENT_ENCODINGS):
        monkeypatch.setitem(encodings, "unknown", encodings["int8"])  # type: ignore[misc]
    found = decode_attend(q, k, None, slots._replace(encoding="unknown"), rows, SCALE)  # type: ignore[arg-type]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, want, strict=True))
