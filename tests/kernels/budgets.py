"""Random arguments of decode attention over heads of different lengths, and over pages; on any device."""

from typing import Any

import torch
from torch import Tensor

from ringkv.kernels.decode_attend_pages import EVERY_PAGE, digest

HEADS, PAGE = 2, 16
READ, LEADING, NEWEST = 12, 1, 3
PINNED = 0.2  # share of the pages


def heads_inputs(
    live: list[int], dtype: torch.dtype, groups: int, width: int, device: str | torch.device = "cpu"
) -> list[Any]:
    """Return q, k, v, keys, values, places, slot, entry, live: a row for each live length, in slots in reverse order.

    The first head has half as many entries as the second, and a part of the slot is before it.
    """
    torch.manual_seed(groups * width)
    rows, longest = len(live), max(live)
    more = torch.tensor([[-(n // 3), n // 3] for n in live])
    room = torch.tensor(live)[:, None] + more
    first = room.cumsum(1) - room + torch.arange(rows)[:, None]
    places = torch.stack((first, more), -1).flip(0).int()
    entry = [max(0, n - 1) if row % 2 else n - 1 - n // 4 for row, n in enumerate(live)]  # after the leading ones
    planes = [(rows, 1, HEADS * longest + rows, width)] * 2
    vectors = _random([(rows, HEADS, groups, width), *[(rows, HEADS, width)] * 2, *planes], dtype, device)
    return [*vectors, places.to(device), *_numbers(range(rows - 1, -1, -1), entry, live, device=device)]


def pages_inputs(
    live: list[int],
    dtype: torch.dtype,
    groups: int,
    width: int,
    is_mean: bool = True,
    device: str | torch.device = "cpu",
    page: int = PAGE,
) -> list[Any]:
    """Return q, k, v, keys, values, digests, pins, counts, slot, entry, live. The first slot reads every page."""
    torch.manual_seed(groups * width)
    rows, entries = len(live), -(-max(live) // page) * page
    planes = [(rows, HEADS, entries, width)] * 2
    q, k, v, keys, values = _random([(rows, HEADS, groups, width), *[(rows, HEADS, width)] * 2, *planes], dtype, device)
    digests = digest(keys.unflatten(2, (-1, page)), is_mean)
    pins = torch.where(torch.rand(digests.shape[:3]) < PINNED, float("inf"), float("-inf")).to(device)
    counts = torch.tensor([[READ, LEADING, NEWEST, int(is_mean), 0]] * rows, dtype=torch.int32, device=device)
    counts[0, 0] = EVERY_PAGE
    numbers = _numbers(range(rows - 1, -1, -1), [max(0, n - 1) for n in live], live, device=device)
    return [q, k, v, keys, values, digests, pins, counts, *numbers]


def copied(inputs: list[Any]) -> list[Any]:
    return [one.clone() if isinstance(one, Tensor) else one for one in inputs]


def _random(shapes: list[tuple[int, ...]], dtype: torch.dtype, device: str | torch.device) -> list[Tensor]:
    return [torch.randn(shape).to(dtype).to(device) for shape in shapes]


def _numbers(*values: Any, device: str | torch.device) -> list[Tensor]:
    return [torch.tensor(list(one), dtype=torch.int32, device=device) for one in values]
