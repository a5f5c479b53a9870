"""Pages of a slot: which are read, and the digests that decide; what steps attend to is in `test_decode_attend`."""

from statistics import fmean

import pytest
import torch

from ringkv.base.cache_spec import PlaneFormat
from ringkv.kernels import decode_attend_reference
from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.encoding import ENCODINGS
from ringkv.kernels.pages import digest
from ringkv.kernels.slots import Pages, Rows, Slots
from tests.kernels.steps import FORMATS, HEADS, LIMIT, NEWEST, PAGE, Attend, Step

pytestmark = pytest.mark.usefixtures("compiled")
WAYS: dict[str, Attend] = {"operator": decode_attend, "reference": decode_attend_reference.decode_attend}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("encoding", FORMATS)
def test_heads_read_first_newest_pinned_and_most_promising_pages(way: str, encoding: PlaneFormat) -> None:
    step = Step(encoding, "pages")
    out, _ = step.run(WAYS[way])
    heads = [(row, head) for row in (0, 2) for head in range(HEADS)]
    assert len({tuple(step.pages(*head)) for head in heads}) == len(heads)  # each selected others
    assert all(len(step.pages(*head)) == LIMIT for head in heads)
    for head in heads:
        want, _ = step.by_hand(*head, way == "operator")
        close = 2e-6 if encoding == "plain" else 2e-3
        torch.testing.assert_close(out[head].double(), want, atol=close, rtol=close)


@pytest.mark.parametrize("way", WAYS)
def test_of_equal_scores_the_first_pages_are_read(way: str) -> None:
    step = Step("plain", "pages")
    assert isinstance(step.slots.reading, Pages)
    step.slots.reading.digests[:] = step.slots.reading.digests[:, :, :1]
    step.slots.reading.pins[:] = float("-inf")
    out, _ = step.run(WAYS[way])
    assert step.pages(0, 0) == [*range(LIMIT - NEWEST), 31, 32, 33]
    torch.testing.assert_close(out[0, 0].double(), step.by_hand(0, 0, False)[0], atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("encoding", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pages_filled_by_steps_have_the_digests_of_pages_filled_at_once(
    way: str, encoding: PlaneFormat, dtype: torch.dtype
) -> None:
    form, width = ENCODINGS[encoding], 64
    torch.manual_seed(0)
    centers = torch.randn(1, 2, width) if form.has_centers else None
    planes = [part for _ in "kv" for part in form.encode(torch.zeros(1, 2, 3 * PAGE, width, dtype=dtype))]
    digests, pins = torch.zeros(1, 2, 3, 2, width, dtype=dtype), torch.full((1, 2, 3), float("-inf"))
    reading = Pages(digests, pins, torch.tensor([[9, 1, 1]], dtype=torch.int32))
    slots = Slots(encoding, tuple(planes), centers, reading)
    for entry in range(2 * PAGE + 1):
        q, k = torch.randn(1, 2, 3, width).to(dtype), 3 * torch.randn(1, 2, width).to(dtype)
        place = torch.tensor([entry], dtype=torch.int32)
        WAYS[way](q, k, k, slots, Rows(torch.zeros_like(place), place, place + 1), 0.1)
    keys = form.decode(*(part[:, :, : 2 * PAGE] for part in planes[: len(form.parts)]))
    assert torch.equal(digests[:, :, :2], digest(keys.unflatten(2, (2, PAGE))).to(dtype))
    assert not digests[:, :, 2].any()


def test_a_digest_is_the_middle_of_the_extremes_plus_and_minus_the_mean_distance_from_it() -> None:
    torch.manual_seed(0)
    pages = torch.randn(3, PAGE, 8)
    for page, found in zip(pages.tolist(), digest(pages), strict=True):
        columns = list(zip(*page, strict=True))
        middles = [(max(column) + min(column)) / 2 for column in columns]
        radii = [fmean(abs(key - middle) for key in column) for column, middle in zip(columns, middles, strict=True)]
        want = [[middle + sign * radius for middle, radius in zip(middles, radii, strict=True)] for sign in (1, -1)]
        torch.testing.assert_close(found, torch.tensor(want))
