"""Heads of different lengths: each attends as if it were alone in a slot of `decode_attend`."""

import pytest
import torch
from torch import Tensor

from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.decode_attend_heads import decode_attend_heads, reference

ROWS, HEADS, GROUPS, ENTRIES = 3, 2, 3, 1400
LIVE, ENTRY = torch.tensor([600, 0, 90], dtype=torch.int32), torch.tensor([570, 3, 89], dtype=torch.int32)
SLOT = torch.tensor([2, 0, 1], dtype=torch.int32)
PLACES = torch.tensor([[[0, 10], [710, -10]], [[0, -80], [620, 80]], [[0, 0], [700, 0]]], dtype=torch.int32)
"""By slot and head: the first entry, and how many more entries than LIVE the head has."""


class Step:
    def __init__(self, dtype: torch.dtype, width: int) -> None:
        torch.manual_seed(width)
        self.q = torch.randn(ROWS, HEADS, GROUPS, width).to(dtype)
        self.k, self.v = (torch.randn(ROWS, HEADS, width).to(dtype) for _ in range(2))
        self.keys, self.values = (torch.randn(ROWS, 1, ENTRIES, width).to(dtype) for _ in range(2))
        self.scale = width**-0.5

    def planes(self) -> tuple[Tensor, Tensor]:
        return self.keys.clone(), self.values.clone()

    def alone(self, row: int, head: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return out and lse of one head in a slot of its own, with its keys and values after the step."""
        slot = int(SLOT[row])
        first, more = PLACES[slot, head].tolist()
        length = int(LIVE[row]) + more
        keys, values = (plane[slot, :, first : first + length][None].clone() for plane in (self.keys, self.values))
        own = (one[row : row + 1, head : head + 1] for one in (self.q, self.k, self.v))
        numbers = torch.tensor([0]), ENTRY[row : row + 1] + more, torch.tensor([length])
        out, lse = decode_attend(*own, keys, values, *(one.int() for one in numbers), self.scale)
        return out[0, 0], lse[0, 0], keys[0, 0], values[0, 0]


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [64, 128])
def test_a_head_has_the_bits_that_it_has_alone_in_a_slot(dtype: torch.dtype, width: int) -> None:
    step = Step(dtype, width)
    keys, values = step.planes()
    out, lse = decode_attend_heads(step.q, step.k, step.v, keys, values, PLACES, SLOT, ENTRY, LIVE, step.scale)
    want = step.planes()
    for row in (0, 2):
        for head in range(HEADS):
            slot, (first, more) = int(SLOT[row]), PLACES[int(SLOT[row]), head].tolist()
            own_out, own_lse, *own = step.alone(row, head)
            assert torch.equal(out[row, head], own_out)
            assert torch.equal(lse[row, head], own_lse)
            for plane, entries in zip(want, own, strict=True):
                plane[slot, 0, first : first + int(LIVE[row]) + more] = entries
    assert torch.equal(keys, want[0])  # nothing else is written
    assert torch.equal(values, want[1])


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("width", [48, 64])
def test_the_reference_agrees_and_a_free_row_gives_zero(width: int) -> None:
    """48 has no C++ kernel."""
    step = Step(torch.float32, width)
    ours, theirs = step.planes(), step.planes()
    found = decode_attend_heads(step.q, step.k, step.v, *ours, PLACES, SLOT, ENTRY, LIVE, step.scale)
    want = reference(step.q, step.k, step.v, *theirs, PLACES, SLOT, ENTRY, LIVE, step.scale)
    torch.testing.assert_close(tuple(found), want, atol=2e-6, rtol=2e-6)
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])
    assert not found.out[1].any()
    assert (found.lse[1] == float("-inf")).all()


@pytest.mark.usefixtures("compiled")
def test_without_new_keys_it_reads_what_is_written() -> None:
    step = Step(torch.bfloat16, 64)
    keys, values = step.planes()
    numbers = PLACES, SLOT, ENTRY, LIVE, step.scale
    written = decode_attend_heads(step.q, step.k, step.v, keys, values, *numbers)
    before = keys.clone()
    read = decode_attend_heads(step.q, None, None, keys, values, *numbers)
    assert torch.equal(read.out, written.out)
    assert torch.equal(keys, before)
