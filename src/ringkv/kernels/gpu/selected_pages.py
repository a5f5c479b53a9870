"""Selection of the pages that a step reads, and digests of those that it completes.

B rows of a step, S slots, H key-value heads, G query heads each, P pages of a slot, D elements of a vector.
"""

import torch
import triton
from torch import Tensor

from ringkv.kernels.gpu.complete_page import complete_page
from ringkv.kernels.gpu.forms import FORMS
from ringkv.kernels.gpu.hadamard import stages
from ringkv.kernels.gpu.readings import Reading
from ringkv.kernels.gpu.select_pages import Selection, score_pages, select_pages
from ringkv.kernels.gpu.step import Step, planes_of, strided
from ringkv.kernels.slots import Pages, Rows

SCORED = 32  # pages that a program scores
SCORE_WARPS, MOST_WARPS = 4, 16
SELECTED = 1024  # pages of each warp of a program that selects
PLAIN_WARPS, DECODE_WARPS, DECODED = 1, 4, 4096  # elements that a program decodes at a time


def complete(step: Step, reading: Pages, everywhere: Reading, page: int) -> None:
    """Write the digests of pages of so many entries whose last key is new. `everywhere`: where the slot has its pages.

    Encoded keys are all written. Of plain ones the new one is not.
    """
    if step.k is None:
        return
    (rows, heads, width), digests, form = step.k.shape, reading.digests, FORMS.get(step.slots.encoding)
    assert digests.stride()[2:] == (2 * width, width, 1)
    keys, columns = step.slots.planes[0], triton.next_power_of_2(width)
    stored = [keys] if form is None else [keys.view(form.stored), step.slots.planes[1].view(form.ranges)]
    complete_page[heads, rows](
        strided(step.k, 2),
        planes_of(*stored),
        strided(digests, 2),
        step.rows,
        everywhere.index,
        READ=everywhere.functions,
        DECODE=form and form.decode,
        PAGE=page,
        KEYS=min(page, max(1, DECODED // columns)),
        SIZE=stored[0].shape[-1],
        WIDTH=width,
        COLUMNS=columns,
        STAGES=stages(width),
        num_warps=DECODE_WARPS if form else PLAIN_WARPS,
        enable_fp_fusion=False,  # see `complete_page`
    )


def select(step: Step, reading: Pages, page: int, with_shares: bool = False) -> Selection:
    """Select the pages of so many entries that a step reads."""
    return selected(scores(step, reading, page), reading, step.rows, page, with_shares)


def scores(step: Step, reading: Pages, page: int) -> Tensor:
    """Return float32 [B, H, G, P] for pages of so many entries. A row that reads all of its pages has none."""
    (rows, heads, groups, width), pages = step.q.shape, reading.digests.shape[2]
    promised = step.q.new_empty(rows, heads, groups, pages, dtype=torch.float32)
    score_pages[triton.cdiv(pages, SCORED), heads, rows](
        strided(step.q, 3),
        strided(reading.digests, 2),
        counts_of(reading),
        step.rows,
        promised,
        step.scale,
        groups,
        pages,
        PAGE=page,
        WIDTH=width,
        COLUMNS=triton.next_power_of_2(width),
        BLOCK=SCORED,
        num_warps=SCORE_WARPS,
    )
    return promised


def selected(scores: Tensor, reading: Pages, rows: Rows, page: int, with_shares: bool = False) -> Selection:
    """Select pages by float32 [B, H, G, P]."""
    batch, heads, groups, pages = scores.shape
    assert reading.pins.is_contiguous()
    shares = scores.new_empty(batch, heads, pages) if with_shares else None
    selection = Selection(scores.new_empty(batch, heads, pages, dtype=torch.int32), torch.empty_like(rows.live), shares)
    padded = triton.next_power_of_2(pages)
    select_pages[heads, batch](
        scores,
        reading.pins,
        counts_of(reading),
        rows,
        selection,
        groups,
        pages,
        PAGE=page,
        PAGES=padded,
        num_warps=max(1, min(MOST_WARPS, padded // SELECTED)),
    )
    return selection


def counts_of(reading: Pages) -> Tensor:
    assert reading.counts.stride() == (3, 1)
    return reading.counts
