"""Pages of int8 slots: which are read, what is attended to, and their digests."""

import math

import pytest
import torch
from torch import Tensor

from ringkv.kernels.decode_attend_int8 import decode, decode_attend_int8, encode
from ringkv.kernels.decode_attend_pages import EVERY_PAGE, digest
from ringkv.kernels.decode_attend_pages_int8 import decode_attend_pages_int8, reference
from ringkv.kernels.encoded_attend import NO_KEY
from ringkv.kernels.library import is_native
from tests.kernels.test_decode_attend_pages import (
    ENTRIES,
    GROUPS,
    HEADS,
    LEADING,
    LIVE,
    NEWEST,
    PAGE,
    READ,
    ROWS,
    SLOT,
    best_of,
    counts,
    first_choices,
    promises,
    selecting,
    some_pins,
)


class Step:
    """One decode step over random entries, whose keys have a common part. The first three keys are exact."""

    def __init__(
        self, dtype: torch.dtype = torch.float32, width: int = 64, is_mean: bool = True, by_layer: bool = False
    ) -> None:
        self.by_layer = by_layer
        torch.manual_seed(width)
        center = 3 * torch.randn(ROWS, HEADS, width)
        self.q = torch.randn(ROWS, HEADS, GROUPS, width).to(dtype)
        self.k, self.v = ((torch.randn(ROWS, HEADS, width) + center[SLOT.long()] * at).to(dtype) for at in (1, 0))
        keys, values = torch.randn(2, ROWS, HEADS, ENTRIES, width)
        first = torch.cat((keys[:, :, :3], torch.full_like(keys[:, :, :1], NO_KEY)), 2)
        self.centers = torch.cat((center, first.flatten(2)), -1)
        self.planes = [*encode(keys), *encode(values)]
        self.digests = digest(decode(*self.planes[:2]).unflatten(2, (-1, PAGE)), is_mean).to(dtype)
        self.pins = some_pins()
        self.is_mean, self.entry, self.scale = is_mean, (LIVE - 1).clamp(min=0), width**-0.5

    def run(self, function, most: int = READ, means: Tensor | None = None):  # type: ignore[no-untyped-def]
        self.after = [one.clone() for one in (*self.planes, self.centers, self.digests)]
        numbers = self.pins, counts(self.is_mean, most, self.by_layer), SLOT, self.entry, LIVE, self.scale
        return function(self.q, self.k, self.v, *self.after, *numbers, means)

    def vectors(self, slot: int, head: int) -> tuple[Tensor, Tensor]:
        """Return the decoded keys and values of a slot after the step, float64."""
        center, *first = self.centers[slot, head].unflatten(0, (-1, self.q.shape[-1])).unbind(0)
        keys, values = (decode(*self.after[at : at + 2])[slot, head].double() for at in (0, 2))
        keys[:3] = torch.stack(first[:3]).double()
        return keys + center.double(), values

    def by_hand(self, row: int, head: int) -> tuple[list[int], Tensor]:
        """Return the pages that a head reads and its attention [G, D], in float64."""
        slot, live = int(SLOT[row]), int(LIVE[row])
        keys, values = self.vectors(slot, head)
        total = math.ceil(live / PAGE)
        q = self.q[row, head].double()

        heads = selecting(head, self.by_layer)
        promised = [promises(self.q[row, one], self.after[5][slot, one, : total - NEWEST]) for one in heads]
        between = first_choices(best_of(promised), self.pins[slot, heads].amax(0))
        pages = sorted([*range(LEADING), *between, *range(total - NEWEST, total)])
        entries = [i for page in pages for i in range(page * PAGE, min(live, (page + 1) * PAGE))]
        weights = (q @ keys[entries].T * self.scale).softmax(-1)
        return pages, weights @ values[entries]


@pytest.fixture(params=["reference", "native"])
def kernel(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    if request.param == "native":
        request.getfixturevalue("compiled")
        assert is_native("decode_attend_pages_int8")
    return reference if request.param == "reference" else decode_attend_pages_int8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("is_mean", [True, False])
def test_a_head_reads_first_newest_and_most_promising_pages(  # type: ignore[no-untyped-def]
    kernel, dtype: torch.dtype, width: int, is_mean: bool
) -> None:
    step = Step(dtype, width, is_mean)
    out, lse = step.run(kernel)
    read = set()
    for row in (0, 2):
        for head in range(HEADS):
            pages, want = step.by_hand(row, head)
            read.add(tuple(pages))
            torch.testing.assert_close(out[row, head].double(), want, atol=1e-2, rtol=1e-2)
    assert len(read) == 4  # each chose others
    assert not out[1].any()
    assert (lse[1] == float("-inf")).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_heads_of_a_layer_may_read_the_same_pages(kernel, dtype: torch.dtype) -> None:  # type: ignore[no-untyped-def]
    step = Step(dtype, by_layer=True)
    out, _ = step.run(kernel)
    for row in (0, 2):
        assert step.by_hand(row, 0)[0] == step.by_hand(row, 1)[0]
        for head in range(HEADS):
            torch.testing.assert_close(out[row, head].double(), step.by_hand(row, head)[1], atol=1e-2, rtol=1e-2)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_all_pages_a_step_has_the_bits_of_int8(dtype: torch.dtype) -> None:
    step = Step(dtype)
    for most in (math.ceil(900 / PAGE), EVERY_PAGE):
        found = step.run(decode_attend_pages_int8, most)
        planes = [one.clone() for one in step.planes]
        want = decode_attend_int8(step.q, step.k, step.v, *planes, step.centers, SLOT, step.entry, LIVE, step.scale)
        assert torch.equal(found.out, want.out)
        assert torch.equal(found.lse, want.lse)
        assert all(torch.equal(*pair) for pair in zip(step.after[:4], planes, strict=True))


@pytest.mark.usefixtures("compiled")
def test_a_copied_block_has_the_bits_of_the_same_entries_in_place() -> None:
    """A slot that has nothing but the selected pages, beside one in which others are between them."""
    step = Step()
    out, lse = step.run(decode_attend_pages_int8)
    for head in range(HEADS):
        pages, _ = step.by_hand(0, head)
        entries = [i for page in pages for i in range(page * PAGE, min(900, (page + 1) * PAGE))]
        one = torch.zeros(1, dtype=torch.int32)
        planes = [plane[2:3, head : head + 1, entries].contiguous() for plane in step.after[:4]]
        live = torch.tensor([len(entries)], dtype=torch.int32)
        own, centers = step.q[:1, head : head + 1], step.centers[2:3, head : head + 1].contiguous()
        want = decode_attend_int8(own, None, None, *planes, centers, one, one, live, step.scale)
        assert torch.equal(out[0, head], want.out[0, 0])
        assert torch.equal(lse[0, head], want.lse[0, 0])


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("is_mean", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pages_filled_by_steps_have_the_digests_of_pages_filled_at_once(dtype: torch.dtype, is_mean: bool) -> None:
    given = Step(dtype, is_mean=is_mean)
    given.centers[..., 64:] = NO_KEY
    center, slot = given.centers[:, :, :64], torch.arange(ROWS, dtype=torch.int32)
    for function in (decode_attend_pages_int8, reference):
        planes, digests = [torch.zeros_like(plane) for plane in given.planes], torch.zeros_like(given.digests)
        keys = (torch.randn(ROWS, HEADS, 2 * PAGE + 1, 64) + center[:, :, None]).to(dtype)
        for entry in range(2 * PAGE + 1):
            at, new = torch.full((ROWS,), entry, dtype=torch.int32), keys[:, :, entry]
            function(
                given.q, new, new, *planes, given.centers, digests, given.pins, counts(is_mean), slot, at, at + 1, 0.1
            )
        want = digest(decode(*(plane[:, :, : 2 * PAGE] for plane in planes[:2])).unflatten(2, (2, PAGE)), is_mean)
        assert torch.equal(digests[:, :, :2], want.to(dtype))
        assert not digests[:, :, 2:].any()
