"""Pages of a slot: which are read, what is attended to, and the digests that decide, against loops."""

import math

import pytest
import torch
from torch import Tensor

from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.decode_attend_pages import EVERY_PAGE, decode_attend_pages, digest, reference

ROWS, HEADS, GROUPS, ENTRIES, PAGE = 3, 2, 3, 960, 16
LIVE = torch.tensor([900, 0, 500], dtype=torch.int32)
SLOT = torch.tensor([2, 0, 1], dtype=torch.int32)
READ, LEADING, NEWEST = 20, 2, 3


def counts(is_mean: bool, most: int = READ, by_layer: bool = False) -> Tensor:
    return torch.tensor([[most, LEADING, NEWEST, int(is_mean), int(by_layer)]] * ROWS, dtype=torch.int32)


def some_pins() -> Tensor:
    """Return pins of one page in ten."""
    pinned = torch.rand(ROWS, HEADS, ENTRIES // PAGE) < 0.1
    return torch.where(pinned, float("inf"), float("-inf"))


def first_choices(promised: list[float], pins: Tensor) -> list[int]:
    """Return the pages that a head reads after the first ones: pinned ones, then those that promise most."""
    own = [float(pin) > 0 for pin in pins]
    between = sorted(range(LEADING, len(promised)), key=lambda page: (own[page], promised[page]), reverse=True)
    return between[: READ - LEADING - NEWEST]


def selecting(head: int, by_layer: bool) -> list[int]:
    """Return the heads that select the pages of a head."""
    return list(range(HEADS)) if by_layer else [head]


def best_of(heads: list[list[float]]) -> list[float]:
    """Return the most of each page that any head promises."""
    return [max(page) for page in zip(*heads, strict=True)]


def promises(q: Tensor, digests: Tensor) -> list[float]:
    """Return the largest share of attention that a query of q [G, D] may pay to each page of digests [P, 2, D]."""
    q, digests = q.double() / math.sqrt(q.shape[-1]), digests.double()
    most = [[float(torch.maximum(one * upper, one * lower).sum()) for upper, lower in digests] for one in q]
    return torch.tensor(most, dtype=torch.float64).softmax(-1).amax(0).tolist()


class Step:
    """One decode step over random keys, whose digests are of their pages."""

    def __init__(
        self,
        dtype: torch.dtype = torch.float32,
        width: int = 64,
        is_mean: bool = True,
        groups: int = GROUPS,
        by_layer: bool = False,
    ) -> None:
        self.by_layer = by_layer
        torch.manual_seed(width)
        self.q = torch.randn(ROWS, HEADS, groups, width).to(dtype)
        self.k, self.v = (torch.randn(ROWS, HEADS, width).to(dtype) for _ in range(2))
        self.keys, self.values = (torch.randn(ROWS, HEADS, ENTRIES, width).to(dtype) for _ in range(2))
        self.digests = digest(self.keys.unflatten(2, (-1, PAGE)), is_mean)
        self.pins = some_pins()
        self.is_mean, self.entry = is_mean, (LIVE - 1).clamp(min=0)

    def run(self, function, most: int = READ, means: Tensor | None = None):  # type: ignore[no-untyped-def]
        self.after = [one.clone() for one in (self.keys, self.values, self.digests)]
        numbers = counts(self.is_mean, most, self.by_layer), SLOT, self.entry, LIVE, self.q.shape[-1] ** -0.5
        return function(self.q, self.k, self.v, *self.after, self.pins, *numbers, means)

    def vectors(self, slot: int, head: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a slot after the step, float64."""
        keys, values = (plane[slot, head].double() for plane in self.after[:2])
        return keys, values

    def by_hand(self, row: int, head: int) -> tuple[list[int], Tensor]:
        """Return the pages that a head reads and its attention [G, D], in float64."""
        slot, live = int(SLOT[row]), int(LIVE[row])
        keys, values = self.vectors(slot, head)
        total = math.ceil(live / PAGE)
        q = self.q[row, head].double()

        heads = selecting(head, self.by_layer)
        promised = [promises(self.q[row, one], self.after[2][slot, one, : total - NEWEST]) for one in heads]
        between = first_choices(best_of(promised), self.pins[slot, heads].amax(0))
        pages = sorted([*range(LEADING), *between, *range(total - NEWEST, total)])
        entries = [i for page in pages for i in range(page * PAGE, min(live, (page + 1) * PAGE))]
        weights = (q @ keys[entries].T / math.sqrt(q.shape[-1])).softmax(-1)
        return pages, weights @ values[entries]


@pytest.fixture(params=["reference", "native"])
def kernel(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    if request.param == "native":
        request.getfixturevalue("compiled")
    return reference if request.param == "reference" else decode_attend_pages


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("is_mean", [True, False])
def test_a_head_reads_first_newest_and_most_promising_pages(  # type: ignore[no-untyped-def]
    kernel, dtype: torch.dtype, close: float, width: int, is_mean: bool
) -> None:
    step = Step(dtype, width, is_mean)
    out, lse = step.run(kernel)
    read = set()
    for row in (0, 2):
        for head in range(HEADS):
            pages, want = step.by_hand(row, head)
            read.add(tuple(pages))
            torch.testing.assert_close(out[row, head].double(), want, atol=close, rtol=close)
    assert len(read) == 4  # each chose others
    assert not out[1].any()
    assert (lse[1] == float("-inf")).all()


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
def test_all_heads_of_a_layer_may_read_the_same_pages(kernel, dtype: torch.dtype, close: float) -> None:  # type: ignore[no-untyped-def]
    step = Step(dtype, by_layer=True)
    out, lse = step.run(kernel)
    for row in (0, 2):
        assert step.by_hand(row, 0)[0] == step.by_hand(row, 1)[0]
        for head in range(HEADS):
            torch.testing.assert_close(out[row, head].double(), step.by_hand(row, head)[1], atol=close, rtol=close)
    assert not out[1].any()
    assert (lse[1] == float("-inf")).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("width", "groups"), [(32, 5), (96, 6), (256, 6), (128, 16), (64, 20)])
def test_any_number_of_query_heads_and_width_attends_to_the_same_pages(  # type: ignore[no-untyped-def]
    kernel, dtype: torch.dtype, width: int, groups: int
) -> None:
    step = Step(dtype, width, groups=groups)
    out, _ = step.run(kernel)
    for row in (0, 2):
        for head in range(HEADS):
            torch.testing.assert_close(out[row, head].double(), step.by_hand(row, head)[1], atol=1e-2, rtol=1e-2)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_all_pages_a_step_has_the_bits_of_decode_attention(dtype: torch.dtype) -> None:
    step = Step(dtype)
    for most in (math.ceil(900 / PAGE), EVERY_PAGE):
        found = step.run(decode_attend_pages, most)
        keys, values = step.keys.clone(), step.values.clone()
        numbers = SLOT, step.entry, LIVE, 64**-0.5
        want = decode_attend(step.q, step.k, step.v, keys, values, *numbers)
        assert torch.equal(found.out, want.out)
        assert torch.equal(found.lse, want.lse)
        assert torch.equal(step.after[0], keys)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("is_mean", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pages_filled_by_steps_have_the_digests_of_pages_filled_at_once(dtype: torch.dtype, is_mean: bool) -> None:
    given = Step(dtype, is_mean=is_mean)
    keys, values, digests = given.keys.clone(), given.values.clone(), torch.zeros_like(given.digests)
    slot = torch.arange(ROWS, dtype=torch.int32)
    for function in (decode_attend_pages, reference):
        for entry in range(2 * PAGE + 1):
            at = torch.full((ROWS,), entry, dtype=torch.int32)
            new = given.keys[:, :, entry], given.values[:, :, entry]
            function(given.q, *new, keys, values, digests, given.pins, counts(is_mean), slot, at, at + 1, 0.1)
        assert torch.equal(digests[:, :, :2], given.digests[:, :, :2])
        assert not digests[:, :, 2:].any()
        digests.zero_()


def test_bounds_are_above_every_score_and_means_are_between() -> None:
    torch.manual_seed(0)
    pages, q = torch.randn(40, PAGE, 64).bfloat16(), 3 * torch.randn(9, 64)
    (upper, lower), (high, low) = (digest(pages, is_mean).float().unbind(1) for is_mean in (False, True))
    scores = torch.einsum("pkd,qd->pkq", pages.float(), q)
    bound = torch.maximum(q * upper[:, None], q * lower[:, None]).sum(-1)
    assert (scores.amax(1) <= bound + 1e-4).all()
    assert ((high <= upper) & (low >= lower)).all()
    assert (high < upper).any()


@pytest.mark.usefixtures("compiled")
def test_of_equal_scores_the_first_pages_are_read() -> None:
    step = Step()
    step.digests[:] = step.digests[:, :, :1]
    step.pins[:] = float("-inf")
    out, _ = step.run(decode_attend_pages)
    want, _ = step.run(reference)
    torch.testing.assert_close(out, want, atol=2e-6, rtol=2e-6)
    entries = [*range((READ - NEWEST) * PAGE), *range((math.ceil(900 / PAGE) - NEWEST) * PAGE, 900)]
    weights = (step.q[0, 0] @ step.after[0][2, 0, entries].T / 8).softmax(-1)
    torch.testing.assert_close(out[0, 0], weights @ step.after[1][2, 0, entries], atol=2e-6, rtol=2e-6)
