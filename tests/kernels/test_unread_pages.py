"""Pages that a step does not read: what they are estimated to hold, against loops in float64."""

import math

import pytest
import torch
from torch import Tensor

from ringkv.base.cache_spec import MEANS
from ringkv.kernels.decode_attend_pages import EVERY_PAGE
from ringkv.kernels.decode_attend_pages import reference as attend_pages
from ringkv.kernels.decode_attend_pages_int8 import reference as attend_pages_int8
from ringkv.kernels.partial import Partial
from ringkv.kernels.unread_pages import add_unread_pages, reference
from tests.kernels import test_decode_attend_pages_int8 as int8
from tests.kernels.test_decode_attend_pages import (
    LEADING,
    LIVE,
    NEWEST,
    PAGE,
    READ,
    ROWS,
    SLOT,
    Step,
    counts,
    first_choices,
    promises,
)

SHORT = 8  # pages, so that most are not read


@pytest.fixture(params=["reference", "native"])
def kernel(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    if request.param == "native":
        request.getfixturevalue("compiled")
    return by_reference if request.param == "reference" else add_unread_pages


def by_reference(read: Partial, *others):  # type: ignore[no-untyped-def]
    return reference(*read, *others)


def added(  # type: ignore[no-untyped-def]
    kernel,
    step: Step | int8.Step,
    means: Tensor,
    most: int = READ,
    v: Tensor | None = None,
    read: Partial | None = None,
) -> Partial:
    """Return the estimate with what was read, by default nothing."""
    nothing = Partial(torch.zeros_like(step.q), torch.full(step.q.shape[:-1], float("-inf")))
    centers = step.centers if isinstance(step, int8.Step) else None
    numbers = counts(step.is_mean, most), SLOT, LIVE, PAGE, step.q.shape[-1] ** -0.5
    return Partial(*kernel(read or nothing, step.q, v, means, centers, step.digests, step.pins, *numbers))


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize(("width", "is_mean"), [(64, True), (128, False)])
def test_a_page_counts_as_the_middle_of_its_digest_so_often_as_it_has_entries(  # type: ignore[no-untyped-def]
    kernel, dtype: torch.dtype, close: float, width: int, is_mean: bool
) -> None:
    step = Step(dtype, width, is_mean)
    means = torch.randn(ROWS, step.q.shape[1], MEANS, width)
    out, lse = added(kernel, step, means)
    for row in (0, 2):
        slot, total = int(SLOT[row]), math.ceil(int(LIVE[row]) / PAGE)
        for head in range(step.q.shape[1]):
            digests, q = step.digests[slot, head].double(), step.q[row, head].double()
            chosen = first_choices(promises(q, digests[: total - NEWEST]), step.pins[slot, head])
            left = [page for page in range(LEADING, total - NEWEST) if page not in chosen]
            assert len(left) == total - READ
            weights = sum(PAGE * (q @ digests[page].mean(0) / math.sqrt(width)).exp() for page in left)
            assert isinstance(weights, Tensor)
            torch.testing.assert_close(lse[row, head].double(), weights.log(), atol=close, rtol=close)
            assert (out[row, head] == means[slot, head, int(LIVE[row]) % MEANS].to(dtype)).all()
    assert (lse[1] == float("-inf")).all()


@pytest.mark.parametrize(("form", "attend"), [(Step, attend_pages), (int8.Step, attend_pages_int8)])
def test_an_estimate_has_its_share_of_the_softmax_beside_what_was_read(kernel, form, attend) -> None:  # type: ignore[no-untyped-def]
    step = form(width=128)
    read, scale = Partial(*step.run(attend)), 128**-0.5
    means = torch.randn(ROWS, step.q.shape[1], MEANS, 128)
    found = added(kernel, step, means, read=read)
    shares = []
    for row in (0, 2):
        slot, live = int(SLOT[row]), int(LIVE[row])
        for head in range(step.q.shape[1]):
            pages, _ = step.by_hand(row, head)
            keys, values = step.vectors(slot, head)
            q, mean = step.q[row, head].double(), means[slot, head, live % MEANS].double()
            entries = [i for page in pages for i in range(page * PAGE, min(live, (page + 1) * PAGE))]
            others = [page for page in range(math.ceil(live / PAGE)) if page not in pages]
            middles = step.digests[slot, head, others].double().mean(1).repeat_interleave(PAGE, 0)
            if form is int8.Step:
                middles += step.centers[slot, head, :128].double()
            scores = q @ torch.cat((keys[entries], middles)).T * scale
            every = torch.cat((values[entries], mean.expand(len(middles), 128)))
            torch.testing.assert_close(found.out[row, head].double(), scores.softmax(-1) @ every, atol=1e-2, rtol=1e-2)
            torch.testing.assert_close(found.lse[row, head].double(), scores.logsumexp(-1), atol=1e-2, rtol=1e-2)
            shares.append(scores.softmax(-1)[:, len(entries) :].sum(-1))
    assert torch.stack(shares).min() > 0.05
    assert torch.stack(shares).max() < 0.95


def test_nothing_is_left_if_a_step_reads_all_pages(kernel) -> None:  # type: ignore[no-untyped-def]
    step = Step()
    for most in (math.ceil(900 / PAGE), EVERY_PAGE):
        read = Partial(*step.run(attend_pages, most))
        stale = torch.full((ROWS, 2, MEANS, 64), float("nan"))
        found = added(kernel, step, stale, most, read=read)
        assert torch.equal(found.out, read.out)
        assert torch.equal(found.lse, read.lse)


def test_the_newest_value_is_added_to_the_mean_of_its_slot(kernel) -> None:  # type: ignore[no-untyped-def]
    step = Step()
    means = torch.full((ROWS, 2, MEANS, 64), 7.0)
    for row in (0, 2):
        means[SLOT[row], :, (int(LIVE[row]) - 1) % MEANS] = step.values[SLOT[row], :, : int(LIVE[row]) - 1].mean(1)
    before = means.clone()
    for v in (step.k, step.v):  # the first is a draft that is taken back
        added(kernel, step, means, v=v)
    for row in (0, 2):
        slot, place = SLOT[row], int(LIVE[row]) % MEANS
        every = torch.cat((step.values[slot, :, : int(LIVE[row]) - 1], step.v[row][:, None]), 1)
        torch.testing.assert_close(means[slot, :, place], every.mean(1), atol=1e-6, rtol=1e-6)
        means[slot, :, place] = 7
    assert torch.equal(means, before)


def test_pages_whose_score_is_no_number_count_nothing(kernel) -> None:  # type: ignore[no-untyped-def]
    step = Step()
    means = torch.randn(ROWS, 2, MEANS, 64)
    step.q[:] = step.q[0, 0, 0]
    step.digests[:, :, 5:20], step.pins[:] = float("nan"), float("-inf")
    some = added(kernel, step, means, SHORT)
    step.digests[:, :, 5:20] = -1e30 * step.q[0, 0, 0].sign()
    assert some.lse[[0, 2]].isfinite().all()
    torch.testing.assert_close(some.lse, added(kernel, step, means, SHORT).lse, atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("compiled")
def test_equal_entries_make_the_estimate_exact() -> None:
    """If all entries of a page are alike, a step with few pages gives what one with all pages does."""
    step = Step()
    for plane in (step.keys, step.values):
        plane[:] = plane[:, :, ::PAGE].repeat_interleave(PAGE, 2)
    step.values[:] = step.values[:, :, :1]
    step.v[:] = step.values[SLOT.long(), :, 0]
    step.digests[:] = step.keys[:, :, ::PAGE, None]
    want = step.run(attend_pages, EVERY_PAGE)
    read = Partial(*step.run(attend_pages, SHORT))
    means = step.values[:, :, :1].repeat(1, 1, MEANS, 1)
    found = added(add_unread_pages, step, means, SHORT, step.v, read)
    live = [0, 2]
    torch.testing.assert_close(found.out[live], want[0][live], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.lse[live], want[1][live], atol=1e-5, rtol=1e-5)
    assert (read.lse[live] < want[1][live] - 0.1).all()
