"""Steps over encoded latents, and what attention to them must give, in float64; for tests of the Triton kernels."""

import torch
from torch import Tensor

from ringkv.kernels.encoded_attend import NO_KEY
from ringkv.kernels.encoded_latents import ENCODINGS

Tensors = list[Tensor]


def step(
    name: str,
    live: list[int],
    dtype: torch.dtype,
    groups: int,
    width: int,
    exact: int = 4,
    device: torch.device | None = None,
) -> Tensors:
    """Return q, k, latents, scales, centers, slot, entry, live: a row for each live length, and a slot more.

    Channels and entries differ in size, and have a mean. The second and third of the exact latents are not kept.
    """
    torch.manual_seed(groups * width)
    rows, capacity = len(live), max(live) + 3
    vectors = torch.randn(rows + 1, 1, capacity, width) * torch.rand(capacity, width) * 3
    centers = torch.randn(rows + 1, 1, 1 + exact, width)
    centers[:, :, 2:4] = NO_KEY
    new = [(torch.randn(rows, 1, *shape, width) / 2).to(dtype) for shape in ((groups,), ())]
    numbers = [torch.tensor(n, dtype=torch.int32) for n in ([*range(rows, 0, -1)], [n // 2 for n in live], live)]
    return [t.to(device or "cpu") for t in (*new, *ENCODINGS[name].encode(vectors), centers.flatten(2), *numbers)]


def attended(name: str, inputs: Tensors, scale: float) -> tuple[Tensor, Tensor]:
    """Return out and lse in float64, after the step's latents are written."""
    q, _, latents, scales, centers, slot, _, live = (t.cpu() for t in inputs)
    width = q.shape[-1]
    out, lse = torch.zeros_like(q, dtype=torch.double), torch.full(q.shape[:-1], -torch.inf, dtype=torch.double)
    for row, (at, count) in enumerate(zip(slot.tolist(), live.tolist(), strict=True)):
        if not count:
            continue
        center, *first = centers[at, 0].view(-1, width).double()
        vectors = ENCODINGS[name].decode(latents[at, 0, :count], scales[at, 0, :count]).double()
        for place, vector in enumerate(first[:count]):
            if not vector.isnan().any():
                vectors[place] = vector
        scores = scale * q[row, 0].double() @ (vectors + center).T
        out[row, 0], lse[row, 0] = scores.softmax(-1) @ (vectors + center), scores.logsumexp(-1)
    return out, lse
