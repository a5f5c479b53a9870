"""A pass over latents with pieces of prompts and slots against each of them alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ringkv.kernels.absorb import absorb, project_values
from ringkv.kernels.attended import Attended
from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.latent_pass import EXPANDED_ROWS, _all_absorbed, _prefill, _shape, mixed_attend_expanded
from ringkv.kernels.prefill_attend import Segment
from ringkv.kernels.slots import Rows, Slots
from tests.kernels.test_expanded_attend import ENTRY, SCALE, Pass

LONG, SHORT, SLOTS, ENTRIES = EXPANDED_ROWS + 40, 50, 4, 100
PIECES = {
    "long": [Segment(0, LONG, 2, 0, 64, 64 + LONG)],
    "unfinished": [Segment(0, LONG, 2, 0, 64, 1200)],
    "short": [Segment(0, SHORT, 0, 0, 32, 32 + SHORT)],
    "both": [Segment(0, LONG, 2, 0, 64, 64 + LONG), Segment(LONG, SHORT, 0, 900, 32, 500)],
    "none": [Segment(0, 0, 0, 0, 0, 0)],
}


class Mixed(Pass):
    """A pass with pieces, then rows of slots 1 and 3, then padding."""

    def __init__(self, pieces: list[Segment], weights: str | None) -> None:
        before = pieces[-1].here.stop
        super().__init__(pieces, before + 12, weights)
        self.fed = slice(before, before + 2)
        slot, entry, live = (torch.zeros(before + 12, dtype=torch.int32) for _ in range(3))
        slot[self.fed], live[self.fed] = torch.tensor([1, 3]).int(), torch.tensor([70, 9]).int()
        entry[self.fed] = live[self.fed] - 1
        latents = torch.randn(SLOTS, 1, ENTRIES, ENTRY).to(self.q.dtype)
        self.slots, self.decoding = Slots("plain", (latents,)), Rows(slot, entry, live)

    def mixed(self) -> Attended:
        return mixed_attend_expanded(self.q, self.k, self.staged, self.slots, self.decoding, SCALE, self.expansion)

    def decoded(self) -> Attended:
        queries = absorb(self.q, self.k, self.expansion)
        return project_values(decode_attend(queries, self.k, None, self.slots, self.decoding, SCALE), self.expansion)

    @property
    def state(self) -> list[Tensor]:
        return [self.latents, self.window, *self.slots.planes]


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("weights", [None, "bf16", "int4"])
@pytest.mark.parametrize("pieces", PIECES.values(), ids=list(PIECES))
def test_pieces_and_slots_of_one_pass_have_the_bits_that_they_have_alone(
    pieces: list[Segment], weights: str | None
) -> None:
    together, apart = Mixed(pieces, weights), Mixed(pieces, weights)
    found, staged, decoded = together.mixed(), apart.run(), apart.decoded()
    assert torch.equal(found.out, staged.out + decoded.out)
    assert torch.equal(found.lse, torch.maximum(staged.lse, decoded.lse))
    assert found.out[together.fed].any()
    for one, other in zip(together.state, apart.state, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("length", [64 + LONG, 64 + LONG - 5, 64 + LONG + 3, 1200])
def test_an_expanded_chunk_leaves_its_part_of_a_prompts_last_queries_absorbed_in_the_window(length: int) -> None:
    """Of the last 8 tokens the chunk has all, all with padding after them, some, or none."""
    made = Pass([Segment(0, LONG, 3, 0, 64, length)], LONG)
    made.run()
    want = torch.zeros_like(made.window)
    absorbed = absorb(made.q, made.k, made.expansion)
    for place, token in enumerate(range(length - 8, length)):
        if 64 <= token < 64 + LONG:
            want[3, 0, :, place] = absorbed[token - 64, 0]
    assert torch.equal(made.window, want)


@pytest.mark.parametrize("attend", [_prefill, _all_absorbed])
def test_results_are_laid_out_as_graphs_are_compiled_for(attend: Callable[..., tuple[Tensor, Tensor]]) -> None:
    """Inductor on a GPU checks the strides that the shape function promises."""
    one = Pass(PIECES["short"], SHORT, None)
    results = attend(one.q, one.k, one.staged, one.expansion, SCALE)
    for found, promised in zip(results, _shape(one.q, *one.expansion), strict=True):
        assert (found.shape, found.stride()) == (promised.shape, promised.stride())
