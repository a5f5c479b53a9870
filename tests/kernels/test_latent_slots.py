"""Ranks that divide slots against one call with all slots and heads."""

from itertools import accumulate

import pytest
import torch
from torch import Tensor

from ringkv.base.cache_spec import PlaneFormat
from ringkv.kernels.attended import Attended
from ringkv.kernels.encoding import LATENT_ENCODINGS
from ringkv.kernels.latent_slots import UNDIVIDED, Division, SlotArguments, _decode, decode_attend_slots
from ringkv.kernels.slots import Rows, Slots, mapped
from tests.engine.rank_threads import in_threads
from tests.fake_cuda import fake_cuda

ELEMENTS, VALUES, CAPACITY, SCALE = 48, 32, 20, 0.2


def encoded(latents: Tensor, encoding: PlaneFormat) -> Slots:
    """Return slots with these latents."""
    form = LATENT_ENCODINGS[encoding]
    centers = torch.full((len(latents), 1, ELEMENTS), 0.1) if form.has_centers else None
    return Slots(encoding, form.encode(latents), centers)


@pytest.mark.parametrize(
    ("heads", "encoding"), [((2, 2), "plain"), ((1, 2, 2), "plain"), ((4,), "plain"), ((1, 2, 2), "int8")]
)
def test_ranks_find_what_one_finds_and_write_in_their_own_slots(heads: tuple[int, ...], encoding: PlaneFormat) -> None:
    """Rows are slots in another order, one of which is free."""
    ranks, generator = len(heads), torch.Generator().manual_seed(3)
    slots, rows = 4 * ranks, 2 * ranks
    slot = torch.tensor([3 * ranks + rank for rank in range(ranks)] + [ranks + rank for rank in range(ranks)]).int()
    q = torch.randn(rows, 1, sum(heads), ELEMENTS, generator=generator)
    k = torch.randn(rows, 1, ELEMENTS, generator=generator)
    latents = torch.randn(slots, 1, CAPACITY, ELEMENTS, generator=generator)
    live = torch.randint(2, CAPACITY, (rows,), generator=generator).int()
    entry, live[1] = live - 1, 0
    every = encoded(latents, encoding)
    parts = [mapped(every, lambda tensor, rank=rank: tensor[rank::ranks].clone()) for rank in range(ranks)]
    columns = q.split(heads, 2)

    def one(rank: int) -> Attended:
        own = torch.where(slot % ranks == rank, slot // ranks, -1).int()
        rows = Rows(own, entry, live)
        return decode_attend_slots(columns[rank], k, parts[rank], rows, SCALE, Division(heads, VALUES, "network"))

    found = in_threads(ranks, one)
    whole = decode_attend_slots(q, k, every, Rows(slot, entry, live), SCALE, UNDIVIDED)
    for rank, last in enumerate(accumulate(heads)):
        mine = slice(last - heads[rank], last)
        assert_equal(found[rank].out, whole.out[:, :, mine, :VALUES])
        assert_equal(found[rank].lse, whole.lse[:, :, mine])
        for part, plane in zip(parts[rank].planes, every.planes, strict=True):
            assert torch.equal(part, plane[rank::ranks])


def test_a_cuda_graph_can_contain_it() -> None:
    """No shape inside the operator depends on data, as that of `nonzero` does, which waits for the GPU."""
    with fake_cuda():
        q, k = torch.empty(6, 1, 4, ELEMENTS, device="cuda"), torch.empty(6, 1, ELEMENTS, device="cuda")
        rows = Rows(*(torch.empty(6, dtype=torch.int32, device="cuda") for _ in range(3)))
        planes = [torch.empty(3, 1, CAPACITY, ELEMENTS, device="cuda")]
        found = _decode(q, k, SlotArguments(planes, None, rows, "plain"), SCALE, Division((4, 4), 32, "network"))
        assert [(part.shape, part.device.type) for part in found] == [((6, 1, 4, 32), "cuda"), ((6, 1, 4), "cuda")]


def assert_equal(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
