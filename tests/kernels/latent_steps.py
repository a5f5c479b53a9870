"""Steps over latents of each encoding, and what attention to them must give, in float64; for the Triton kernels."""

import torch
from torch import Tensor

from ringkv.base.cache_spec import PlaneFormat
from ringkv.kernels.encoding import LATENT_ENCODINGS, NO_KEY
from ringkv.kernels.slots import Rows, Slots
from tests.kernels.entry_steps import Inputs

EXACT = 4


def step(
    encoding: PlaneFormat, live: list[int], dtype: torch.dtype = torch.float32, groups: int = 3, width: int = 160
) -> Inputs:
    """Return a step of a row for each live length, and a slot more, which is unused.

    Channels and entries differ in size, and have a mean. The second and third of the exact latents are not kept.
    """
    torch.manual_seed(groups * width)
    count, capacity, form = len(live), max(live) + 3, LATENT_ENCODINGS[encoding]
    vectors = torch.randn(count + 1, 1, capacity, width) * torch.rand(capacity, width) * 3
    centers = torch.randn(count + 1, 1, 1 + EXACT, width)
    centers[:, :, 2:4] = NO_KEY
    q, k = ((torch.randn(count, 1, *shape, width) / 2).to(dtype) for shape in ((groups,), ()))
    slots = Slots(encoding, form.encode(vectors.to(dtype)), centers.flatten(2) if form.has_centers else None)
    columns = [*range(count, 0, -1)], [n // 2 for n in live], live
    return Inputs(q, k, None, slots, Rows(*(torch.tensor(column, dtype=torch.int32) for column in columns)))


def attended(inputs: Inputs, scale: float) -> tuple[Tensor, Tensor]:
    """Return out and lse in float64, after the step's latents are written."""
    q, slots, rows = inputs.q, inputs.slots, inputs.rows
    out, lse = torch.zeros_like(q, dtype=torch.double), torch.full(q.shape[:-1], -torch.inf, dtype=torch.double)
    for row, (slot, count) in enumerate(zip(rows.slot.tolist(), rows.live.tolist(), strict=True)):
        if count:
            vectors = _decoded(slots, slot, count, q.shape[-1])
            scores = scale * q[row, 0].double() @ vectors.T
            out[row, 0], lse[row, 0] = scores.softmax(-1) @ vectors, scores.logsumexp(-1)
    return out, lse


def _decoded(slots: Slots, slot: int, count: int, width: int) -> Tensor:
    """Return float64 [count, D]."""
    planes = [plane[slot, 0, :count] for plane in slots.planes]
    vectors = LATENT_ENCODINGS[slots.encoding].decode(*planes).double()
    if slots.centers is None:
        return vectors
    center, *first = slots.centers[slot, 0].view(-1, width).double()
    for place, vector in enumerate(first[:count]):
        if not vector.isnan().any():
            vectors[place] = vector
    return vectors + center
