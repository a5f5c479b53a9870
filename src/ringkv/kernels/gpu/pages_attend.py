"""Decode attention on CUDA that reads some pages of a slot: kernels select them, before others attend to them."""

from dataclasses import replace

from ringkv.kernels.gpu import entries, recall
from ringkv.kernels.gpu.readings import of_pages
from ringkv.kernels.gpu.selected_pages import complete, select
from ringkv.kernels.gpu.splits import Attended
from ringkv.kernels.gpu.step import Step
from ringkv.kernels.gpu.tiling import Tiling
from ringkv.kernels.slots import Pages, Residents


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
    return entries.attend(step, of_pages(page, select(step, reading, page)), cut)


def _attend_residents(step: Step, reading: Pages, residents: Residents, page: int, cut: Tiling) -> Attended:
    selection = recall.recall(step, reading, residents, page)
    here = step._replace(slots=step.slots._replace(planes=(residents.keys, residents.values)))
    placed = of_pages(page, selection, residents.place_of)
    complete(here, reading, placed, page)
    return entries.attend(here, placed, cut)
