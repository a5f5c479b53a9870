"""Pages that a step does not read: what they are estimated to hold, against loops in float64."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from ringkv.base.cache_spec import MEANS
from ringkv.kernels import decode_attend_pages, decode_attend_pages_int8
from ringkv.kernels.decode_attend_pages import EVERY_PAGE
from tests.kernels import test_decode_attend_pages_int8 as int8
from tests.kernels.test_decode_attend_pages import LIVE, PAGE, ROWS, SLOT, Step

SHORT = 8  # pages, so that most are not read
ATTEND = {Step: decode_attend_pages, int8.Step: decode_attend_pages_int8}


@pytest.fixture(params=["reference", "native"])
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "native":
        request.getfixturevalue("compiled")
    return str(request.param)


def attend(step: Step | int8.Step, name: str):  # type: ignore[no-untyped-def]
    """Return the function that takes this step: the operator, or its reference."""
    module = ATTEND[type(step)]
    return getattr(module, "reference" if name == "reference" else module.__name__.rpartition(".")[2])


def some_means(step: Step | int8.Step) -> Tensor:
    return torch.randn(ROWS, step.q.shape[1], MEANS, step.q.shape[-1])


@pytest.mark.parametrize(
    ("form", "dtype", "close"),
    [
        (Step, torch.float32, 1e-5),
        (Step, torch.bfloat16, 1e-2),
        (partial(Step, groups=6), torch.bfloat16, 1e-2),
        (int8.Step, torch.float32, 1e-2),
    ],
)
@pytest.mark.parametrize(("width", "is_mean"), [(64, True), (128, False)])
def test_a_page_counts_as_the_middle_of_its_digest_and_the_mean_value_for_each_entry(
    name: str, form: Callable[..., Step | int8.Step], dtype: torch.dtype, close: float, width: int, is_mean: bool
) -> None:
    step = form(dtype, width, is_mean)
    means = some_means(step)
    out, lse = step.run(attend(step, name), means=means)
    shares = []
    for row in (0, 2):
        slot, live = int(SLOT[row]), int(LIVE[row])
        for head in range(step.q.shape[1]):
            pages, _ = step.by_hand(row, head)
            keys, values = step.vectors(slot, head)
            q, mean = step.q[row, head].double(), means[slot, head, live % MEANS].double()
            entries = [i for page in pages for i in range(page * PAGE, min(live, (page + 1) * PAGE))]
            others = [page for page in range(math.ceil(live / PAGE)) if page not in pages]
            middles = step.after[-1][slot, head, others].double().mean(1).repeat_interleave(PAGE, 0)
            if isinstance(step, int8.Step):
                middles += step.centers[slot, head, :width].double()
            scores = q @ torch.cat((keys[entries], middles)).T / math.sqrt(width)
            every = torch.cat((values[entries], mean.expand(len(middles), width)))
            torch.testing.assert_close(out[row, head].double(), scores.softmax(-1) @ every, atol=close, rtol=close)
            torch.testing.assert_close(lse[row, head].double(), scores.logsumexp(-1), atol=close, rtol=close)
            shares.append(scores.softmax(-1)[:, len(entries) :].sum(-1))
    assert torch.stack(shares).min() > 0.05
    assert torch.stack(shares).max() < 0.95
    assert not out[1].any()
    assert (lse[1] == float("-inf")).all()


@pytest.mark.parametrize("form", [Step, int8.Step])
def test_nothing_is_left_if_a_step_reads_all_pages(name: str, form: type[Step] | type[int8.Step]) -> None:
    step = form()
    for most in (math.ceil(900 / PAGE), EVERY_PAGE):
        stale = torch.full_like(some_means(step), float("nan"))
        found = step.run(attend(step, name), most, stale)
        want = step.run(attend(step, name), most)
        assert torch.equal(found[0], want[0])
        assert torch.equal(found[1], want[1])


@pytest.mark.parametrize("form", [Step, int8.Step])
def test_the_newest_value_is_added_to_the_mean_of_its_slot(name: str, form: type[Step] | type[int8.Step]) -> None:
    step = form()
    values = torch.randn(ROWS, step.q.shape[1], 900, step.q.shape[-1])
    means = torch.full_like(some_means(step), 7.0)
    for row in (0, 2):
        means[SLOT[row], :, (int(LIVE[row]) - 1) % MEANS] = values[SLOT[row], :, : int(LIVE[row]) - 1].mean(1)
    before, newest = means.clone(), step.v
    for value in (step.k, newest):  # the first is a draft that is taken back
        step.v = value
        step.run(attend(step, name), means=means)
    for row in (0, 2):
        slot, place = SLOT[row], int(LIVE[row]) % MEANS
        every = torch.cat((values[slot, :, : int(LIVE[row]) - 1], step.v[row][:, None]), 1)
        torch.testing.assert_close(means[slot, :, place], every.mean(1), atol=1e-6, rtol=1e-6)
        means[slot, :, place] = 7
    assert torch.equal(means, before)


def test_pages_whose_score_is_no_number_count_nothing(name: str) -> None:
    step = Step()
    means = some_means(step)
    step.q[:] = step.q[0, 0, 0]
    step.digests[:, :, 5:20], step.pins[:] = float("nan"), float("-inf")
    some = step.run(attend(step, name), SHORT, means)
    step.digests[:, :, 5:20] = -1e30 * step.q[0, 0, 0].sign()
    assert some[1][[0, 2]].isfinite().all()
    torch.testing.assert_close(some[1], step.run(attend(step, name), SHORT, means)[1], atol=1e-4, rtol=1e-4)


def test_equal_entries_make_the_estimate_exact(name: str) -> None:
    """If all entries of a page are alike, a step with few pages gives what one with all pages does."""
    step = Step()
    for plane in (step.keys, step.values):
        plane[:] = plane[:, :, ::PAGE].repeat_interleave(PAGE, 2)
    step.values[:] = step.values[:, :, :1]
    step.v[:] = step.values[SLOT.long(), :, 0]
    step.digests[:] = step.keys[:, :, ::PAGE, None]
    want = step.run(attend(step, name), EVERY_PAGE)
    dropped = step.run(attend(step, name), SHORT)
    means = step.values[:, :, :1].repeat(1, 1, MEANS, 1)
    found = step.run(attend(step, name), SHORT, means)
    live = [0, 2]
    torch.testing.assert_close(found[0][live], want[0][live], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[1][live], want[1][live], atol=1e-5, rtol=1e-5)
    assert (dropped[1][live] < want[1][live] - 0.1).all()
