"""Decode attention on CUDA that reads some pages of a slot: kernels select them, before others attend to them.

B rows of a step, H key-value heads, P pages of a slot.
"""

from dataclasses import replace

import torch
from torch import Tensor

from ringkv.kernels.gpu import entries, recall
from ringkv.kernels.gpu.readings import of_pages
from ringkv.kernels.gpu.select_pages import Selection
from ringkv.kernels.gpu.selected_pages import complete, select
from ringkv.kernels.gpu.splits import Attended
from ringkv.kernels.gpu.step import Step
from ringkv.kernels.gpu.tiling import Tiling
from ringkv.kernels.partial import Partial
from ringkv.kernels.slots import Pages, Residents
from ringkv.kernels.unread_pages import SeenPages, add_unread_pages


def decode_attend(step: Step, reading: Pages, cut: Tiling) -> Attended:
    """See `kernels.decode_attend`. The tiling does not depend on where the pages are."""
    page = step.slots.planes[0].shape[2] // reading.digests.shape[2]
    if not entries.is_encoded(step):
        cut = replace(cut, stages=2 * cut.stages - 1)  # half of them load numbers of pages ahead of entries
    if reading.residents is not None:
        return _attend_residents(step, reading, reading.residents, page, cut)
    every = of_pages(page)
    entries.write(step, every)
    complete(step, reading, every, page)
    selection = select(step, reading, page)
    read = entries.attend(step, of_pages(page, selection), cut)
    return read if reading.means is None else _with_unread(read, step, reading, selection, page)


def _attend_residents(step: Step, reading: Pages, residents: Residents, page: int, cut: Tiling) -> Attended:
    selection = recall.recall(step, reading, residents, page)
    here = step._replace(slots=step.slots._replace(planes=(residents.keys, residents.values)))
    placed = of_pages(page, selection, residents.place_of)
    complete(here, reading, placed, page)
    return entries.attend(here, placed, cut)


def _with_unread(read: Attended, step: Step, reading: Pages, selection: Selection, page: int) -> Attended:
    """Add an estimate of the pages that were not read."""
    rows = step.rows
    seen = SeenPages(as_mask(selection.pages, reading.counts[rows.slot.long(), 0], rows.live, page), page)
    return add_unread_pages(Partial(*read), step.q, step.v, reading, step.slots.centers, rows, seen, step.scale)


def as_mask(pages: Tensor, limit: Tensor, live: Tensor, page: int) -> Tensor:
    """Return bool [B, H, P]: the pages that are read, the first of pages int32 [B, H, P]; at most `limit` int32 [B]."""
    index = torch.arange(pages.shape[-1], device=pages.device)
    is_read = index < torch.minimum(limit, (live + page - 1) // page)[:, None, None]
    seen = pages.new_zeros(*pages.shape[:2], pages.shape[2] + 1, dtype=torch.bool)
    places = torch.where(is_read, pages, pages.shape[-1]).long()
    return seen.scatter_(-1, places, True)[..., :-1]
