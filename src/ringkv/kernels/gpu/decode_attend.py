"""Decode attention on CUDA, in Triton kernels whose launches do not depend on lengths, as a CUDA graph needs.

A row's result depends only on its slot's length and on fixed shapes, not on its neighbours.
"""

from dataclasses import replace

from torch import Tensor

from ringkv.base.cache_spec import IN_CHUNKS
from ringkv.kernels import decode_attend_reference
from ringkv.kernels.encoding import ENCODINGS
from ringkv.kernels.gpu import entries, latent_attend, recall, zip_attend
from ringkv.kernels.gpu.forms import FORMS
from ringkv.kernels.gpu.readings import EVERY, SPREAD, of_heads, of_pages
from ringkv.kernels.gpu.select_pages import complete, select
from ringkv.kernels.gpu.splits import OutAndLse
from ringkv.kernels.gpu.step import Step
from ringkv.kernels.gpu.tiling import Tiling
from ringkv.kernels.slots import Pages, Ragged, Residents, Rows, Slots

HEAD_ENTRIES = 8192  # of a usual ragged head: a slot has the entries of all layers, so its size does not tell


def decode_attend(
    q: Tensor, k: Tensor | None, v: Tensor | None, slots: Slots, rows: Rows, scale: float, cut: Tiling | None = None
) -> OutAndLse:
    """See `kernels.decode_attend`, whose reference is the contract. `cut` replaces the usual tiling.

    The planes may be views of larger tensors if each head's entries are contiguous. The splits of `cut` are those of a
    head on average. An encoding without a Triton form has the reference.
    """
    if slots.encoding not in ("plain", IN_CHUNKS, *FORMS):
        return decode_attend_reference.decode_attend(q, k, v, slots, rows, scale)
    step = Step.of(q, k, v, slots, rows, scale)
    if slots.encoding == IN_CHUNKS:
        return zip_attend.decode_attend(step, cut)
    if len(slots.planes) == len(ENCODINGS[slots.encoding].parts):
        return latent_attend.decode_attend(step, cut)
    usual = cut or entries.usual_tiling(step, capacity_of(step))
    if isinstance(slots.reading, Pages):
        return _attend_pages(step, slots.reading, usual)
    reading = EVERY
    if isinstance(slots.reading, Ragged):
        reading, usual = of_heads(slots.reading.places), replace(usual, splits=usual.splits * SPREAD.value)
    entries.write(step, reading)
    return entries.attend(step, reading, usual)


def capacity_of(step: Step) -> int:
    """Return the entries of a head, or of a usual one."""
    entries_of_plane = step.slots.planes[0].shape[2]
    is_ragged = isinstance(step.slots.reading, Ragged)
    return min(HEAD_ENTRIES, entries_of_plane // step.q.shape[1]) if is_ragged else entries_of_plane


def _attend_pages(step: Step, reading: Pages, cut: Tiling) -> OutAndLse:
    """Select pages of a slot and attend to them. The tiling does not depend on where the pages are."""
    page = step.slots.planes[0].shape[2] // reading.digests.shape[2]
    if step.slots.encoding == "plain":
        cut = replace(cut, stages=2 * cut.stages - 1)  # half of them load numbers of pages ahead of entries
    if reading.residents is not None:
        return _attend_residents(step, reading, reading.residents, page, cut)
    every = of_pages(page)
    entries.write(step, every)
    complete(step, reading, every, page)
    return entries.attend(step, of_pages(page, select(step, reading, page)), cut)


def _attend_residents(step: Step, reading: Pages, residents: Residents, page: int, cut: Tiling) -> OutAndLse:
    selection = recall.recall(step, reading, residents, page)
    here = step._replace(slots=step.slots._replace(planes=(residents.keys, residents.values)))
    placed = of_pages(page, selection, residents.place_of)
    complete(here, reading, placed, page)
    return entries.attend(here, placed, cut)
