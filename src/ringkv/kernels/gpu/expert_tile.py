# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The tile of a program: some of the rows that are routed to one expert.

E experts. Rows are sorted by expert, so an expert's rows are consecutive positions. Its tiles cover them, and the last
of them may have fewer rows. How many tiles an expert has is known only on the device: programs without a tile return.
"""

import triton
import triton.language as tl


@triton.jit
def find_tile(
    bounds_at,  # int32 [E + 1], the first position of each expert, and the number of all
    tile,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,  # EXPERTS, padded to a power of two
    ROWS: tl.constexpr,  # positions of a tile
):
    """Return expert, first and stop of the positions of tile number `tile`; first equals stop if there is no tile."""
    expert = tl.arange(0, PADDED)
    is_real = expert < EXPERTS
    first = tl.load(bounds_at + expert, mask=is_real, other=0)
    stop = tl.load(bounds_at + expert + 1, mask=is_real, other=0)
    tiles = tl.cdiv(stop - first, ROWS)
    after = tl.cumsum(tiles, 0)  # the first tile of the next expert
    found = tl.sum((after <= tile).to(tl.int32), 0)
    is_found = expert == found
    start = tl.sum(tl.where(is_found, first + (tile - after + tiles) * ROWS, 0), 0)
    return found, start, tl.sum(tl.where(is_found, stop, 0), 0)
