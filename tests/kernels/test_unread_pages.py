"""Pages that a step does not read: what they are estimated to hold, against loops in float64."""

import math

import pytest
import torch

from ringkv.base.cache_spec import MEANS, PlaneFormat
from ringkv.kernels import decode_attend_reference
from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.pages import EVERY_PAGE
from ringkv.kernels.slots import Pages
from tests.kernels.steps import ENTRIES, FORMATS, HEADS, LIMIT, PAGE, ROWS, Attend, Step

pytestmark = pytest.mark.usefixtures("compiled")
WAYS: dict[str, Attend] = {"operator": decode_attend, "reference": decode_attend_reference.decode_attend}
LONG = 0, 2
"""Rows with unread pages."""


def paged(encoding: PlaneFormat = "plain", dtype: torch.dtype = torch.float32, width: int = 64) -> Step:
    return Step(encoding, "pages", dtype, width, is_mean=width == 64)


def reading(step: Step) -> Pages:
    assert isinstance(step.slots.reading, Pages)
    return step.slots.reading


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("encoding", FORMATS)
@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 64), (torch.bfloat16, 128), (torch.float32, 40)])
def test_a_page_counts_as_the_middle_of_its_digest_and_the_mean_value_for_each_entry(
    way: str, encoding: PlaneFormat, dtype: torch.dtype, width: int
) -> None:
    step = paged(encoding, dtype, width)
    step.limited(LIMIT, step.some_means())
    out, lse = step.run(WAYS[way])
    after = step.after.reading
    assert isinstance(after, Pages)
    assert after.means is not None
    close = 1e-5 if encoding == "plain" and dtype == torch.float32 else 1e-2
    for row in LONG:
        slot, live = int(ROWS.slot[row]), int(ROWS.live[row])
        for head in range(HEADS):
            pages, read = step.pages(row, head), step.read(row, head)
            others = [page for page in range(math.ceil(live / PAGE)) if page not in pages]
            middles = after.digests[slot, head, others].double().mean(1).repeat_interleave(PAGE, 0)
            middles = middles + step.center(row, head)
            of_middles = step.q[row, head].double() @ middles.T * step.scale
            scores = torch.cat((step.scores(row, head, read, False), of_middles), 1)
            mean = after.means[slot, head, live % MEANS].double().expand(len(middles), width)
            want = scores.softmax(-1) @ torch.cat((read.values, mean))
            torch.testing.assert_close(out[row, head].double(), want, atol=close, rtol=close)
            torch.testing.assert_close(lse[row, head].double(), scores.logsumexp(-1), atol=close, rtol=close)
            share = scores.softmax(-1)[:, len(read.entries) :].sum(-1)
            assert 0.02 < share.min()
            assert share.max() < 0.98
    assert not out[1].any()
    assert (lse[1] == float("-inf")).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("encoding", FORMATS)
def test_nothing_is_estimated_if_a_step_reads_all_pages(way: str, encoding: PlaneFormat) -> None:
    step = paged(encoding)
    for limit in (ENTRIES // PAGE, EVERY_PAGE):
        step.limited(limit)
        want = step.run(WAYS[way])
        step.limited(limit, torch.full_like(step.some_means(), float("nan")))
        found = step.run(WAYS[way])
        assert torch.equal(found.out, want.out)
        assert torch.equal(found.lse, want.lse)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("encoding", FORMATS)
def test_the_newest_value_is_added_to_the_mean_of_its_slot(way: str, encoding: PlaneFormat) -> None:
    step, used = paged(encoding), [0, 2, 3]
    older, means = torch.randn(len(ROWS.slot), HEADS, ENTRIES, 64), torch.full_like(step.some_means(), 7.0)
    for row in used:
        count = int(ROWS.live[row]) - 1
        means[ROWS.slot[row], :, count % MEANS] = older[row, :, :count].mean(1)
    step.limited(LIMIT, means)
    step.run(WAYS[way])
    found = step.after.reading
    assert isinstance(found, Pages)
    assert found.means is not None
    for row in used:
        slot, live = ROWS.slot[row], int(ROWS.live[row])
        every = torch.cat((older[row, :, : live - 1], step.v[row][:, None]), 1)
        torch.testing.assert_close(found.means[slot, :, live % MEANS], every.mean(1), atol=1e-6, rtol=1e-6)
        found.means[slot, :, live % MEANS] = means[slot, :, live % MEANS]
    assert torch.equal(found.means, means)  # older means stay, so that drafts can be taken back


@pytest.mark.parametrize("way", WAYS)
def test_pages_whose_score_is_no_number_count_nothing(way: str) -> None:
    step = paged()
    step.limited(LIMIT, step.some_means())
    step.q[:] = step.q[0, 0, 0]
    digests, pins = reading(step).digests, reading(step).pins
    digests[:, :, 3:6], pins[:] = float("nan"), float("-inf")
    unknown = step.run(WAYS[way])
    digests[:, :, 3:6] = -1e30 * step.q[0, 0, 0].sign()
    assert unknown.lse[[0, 2, 3]].isfinite().all()
    torch.testing.assert_close(unknown.lse, step.run(WAYS[way]).lse, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_equal_entries_make_the_estimate_exact(way: str) -> None:
    """If all entries of a page are alike, a step with few pages gives what one with all pages does."""
    step, long = paged(), list(LONG)
    keys, values = step.slots.planes
    keys[:] = keys[:, :, ::PAGE].repeat_interleave(PAGE, 2)
    values[:] = values[:, :, :1]
    step.v[:] = values[ROWS.slot.long(), :, 0]
    reading(step).digests[:] = keys[:, :, ::PAGE, None]
    for row in long:
        step.k[row] = keys[ROWS.slot[row], :, ROWS.entry[row]]
    step.limited(EVERY_PAGE)
    want = step.run(WAYS[way])
    step.limited(LIMIT)
    dropped = step.run(WAYS[way])
    step.limited(LIMIT, values[:, :, :1].repeat(1, 1, MEANS, 1))
    found = step.run(WAYS[way])
    torch.testing.assert_close(found.out[long], want.out[long], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.lse[long], want.lse[long], atol=1e-5, rtol=1e-5)
    assert (dropped.lse[0] < want.lse[0] - 0.1).all()
