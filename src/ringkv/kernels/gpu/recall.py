"""Recall of the pages that a step reads from the host's pinned memory: kernels find places for them and move them.

B rows of a step, S slots, H key-value heads, P pages of a slot, R places for pages on the device, D elements of a
vector.
"""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ringkv.kernels.gpu.move_pages import move_pages
from ringkv.kernels.gpu.place_pages import place_pages
from ringkv.kernels.gpu.select_pages import Selection
from ringkv.kernels.gpu.selected_pages import select
from ringkv.kernels.gpu.step import Step, new_rows, planes_of
from ringkv.kernels.slots import Pages, Residents, Rows

MOVERS = 4  # programs that share the pages that one head recalls
PLACE_WARPS, MOVE_WARPS = 1, 4


class Moves(NamedTuple):
    """Which of the selected pages take which places, int32 [B, H, R] each, and how many, int32 [B, H].

    placed: int32 [B, H, P], the places of the selected pages; `move_pages` writes those of pages that move.
    """

    wanted: Tensor
    freed: Tensor
    counts: Tensor
    placed: Tensor


def recall(step: Step, reading: Pages, residents: Residents, page: int) -> Selection:
    """Copy pages that the step reads to places, and new tokens to the host. Return places instead of pages."""
    assert all(part.is_contiguous() for part in residents[2:])
    assert residents.keys.stride() == residents.values.stride()
    assert step.slots.planes[0].stride() == step.slots.planes[1].stride()
    selection = select(step, reading, page, with_shares=True)
    moves = place(selection, residents, step.rows, page)
    _move(step, residents, selection, moves, page)
    return selection._replace(pages=moves.placed)


def place(selection: Selection, residents: Residents, rows: Rows, page: int) -> Moves:
    """Find places for the selected pages. Other pages lose theirs in `place_of`, and `fetched` counts."""
    (batch, heads, pages), places = selection.pages.shape, residents.page_in.shape[2]
    wanted, freed = (selection.pages.new_empty(batch, heads, places) for _ in range(2))
    moves = Moves(wanted, freed, selection.pages.new_empty(batch, heads), torch.empty_like(selection.pages))
    padded = triton.next_power_of_2(places)
    place_pages[heads, batch](
        selection,
        rows,
        residents,
        moves,
        pages,
        places,
        PAGE=page,
        PLACES=padded,
        STEPS=padded.bit_length() - 1,
        num_warps=PLACE_WARPS,
    )
    return moves


def _move(step: Step, residents: Residents, selection: Selection, moves: Moves, page: int) -> None:
    """Write the new token to the host, and copy pages from it to their places, in the planes and in the maps."""
    (batch, heads, pages), width = selection.pages.shape, step.q.shape[3]
    move_pages[MOVERS, heads, batch](
        new_rows(step.k, step.v),
        planes_of(*step.slots.planes),
        planes_of(residents.keys, residents.values),
        selection.pages,
        moves,
        step.rows,
        residents,
        pages,
        residents.page_in.shape[2],
        PAGE=page,
        WIDTH=width,
        COLUMNS=triton.next_power_of_2(width),
        num_warps=MOVE_WARPS,
    )
