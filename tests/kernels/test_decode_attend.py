"""Decode attention over slots of each encoding and reading, against loops in float64 over what a step reads."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from ringkv.base.cache_spec import PlaneFormat
from ringkv.base.page_counts import EVERY_PAGE
from ringkv.kernels import decode_attend_reference
from ringkv.kernels.constants import WIDTH_STEP
from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.encoding import ENCODINGS
from ringkv.kernels.library import is_native
from ringkv.kernels.slots import Rows, Slots, flat, mapped
from tests.kernels.steps import ENTRIES, FORMATS, HEADS, PAGE, READINGS, ROWS, Attend, Step

pytestmark = pytest.mark.usefixtures("compiled")
WAYS: dict[str, Attend] = {"operator": decode_attend, "reference": decode_attend_reference.decode_attend}
SHAPES = [
    (torch.float32, 64, 3),
    (torch.float32, 40, 5),  # a width without a C++ kernel
    (torch.bfloat16, 128, 6),
    (torch.bfloat16, 32, 16),
    (torch.float16, 96, 1),
    (torch.bfloat16, 256, 7),
]
LIVE = [row for row, live in enumerate(ROWS.live.tolist()) if live]
EACH = pytest.mark.parametrize("encoding", FORMATS), pytest.mark.parametrize("reading", READINGS)


def each(test):  # type: ignore[no-untyped-def]
    """Run a test for each encoding and reading."""
    for mark in EACH:
        test = mark(test)
    return test


def tolerance(encoding: PlaneFormat, dtype: torch.dtype) -> float:
    """Return that of outputs. Softmax weights in 16 bits cost encodings more than float32 does."""
    of_dtype = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    return of_dtype if encoding == "plain" else max(of_dtype, 2e-3)


@each
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("dtype", "width", "groups"), SHAPES)
def test_a_step_attends_to_what_its_reading_selects(
    way: str, encoding: PlaneFormat, reading: str, dtype: torch.dtype, width: int, groups: int
) -> None:
    step = Step(encoding, reading, dtype, width, groups)
    out, lse = step.run(WAYS[way])
    close = tolerance(encoding, dtype)
    for row in LIVE:
        for head in range(HEADS):
            want, log_sum = step.by_hand(row, head, way == "operator" and width % WIDTH_STEP == 0)
            torch.testing.assert_close(out[row, head].double(), want, atol=close, rtol=close)
            torch.testing.assert_close(lse[row, head].double(), log_sum, atol=1e-4, rtol=1e-4)
    assert not out[1].any()
    assert (lse[1] == float("-inf")).all()


@each
@pytest.mark.parametrize("way", WAYS)
def test_a_step_writes_its_encoded_vectors_to_their_entries_and_nothing_else(
    way: str, encoding: PlaneFormat, reading: str
) -> None:
    step = Step(encoding, reading)
    step.run(WAYS[way])
    planes = [plane.clone() for plane in step.slots.planes]
    for row in LIVE:
        for head in range(HEADS):
            plane_head, first, count = step.place(row, head)
            entry = first + int(ROWS.entry[row]) + count - int(ROWS.live[row])
            key = (step.k[row, head] - step.center(row, head).float()).to(torch.float32)
            new = *ENCODINGS[encoding].encode(key), *ENCODINGS[encoding].encode(step.v[row, head])
            for plane, part in zip(planes, new, strict=True):
                plane[ROWS.slot[row], plane_head, entry] = part
    for plane, want in zip(step.after.planes, planes, strict=True):
        torch.testing.assert_close(plane, want, rtol=1e-6, atol=0)  # the last bit of an int8 scale may differ


@pytest.mark.parametrize("encoding", FORMATS)
@pytest.mark.parametrize("width", [64, 96, 128])
def test_vectors_of_any_size_are_written_as_the_reference_writes_them(encoding: PlaneFormat, width: int) -> None:
    rows, form = 200, ENCODINGS[encoding]
    sizes = torch.logspace(-6, 6, rows)[:, None, None]
    k, v, q = torch.randn(rows, 1, width) * sizes, torch.randn(rows, 1, width) * sizes, torch.randn(rows, 1, 1, width)
    k[0], v[1] = 0, 0
    planes = [part for _ in "kv" for part in form.encode(torch.zeros(rows, 1, 3, width))]
    slots = Slots(encoding, tuple(planes), torch.zeros(rows, 1, width) if form.has_centers else None)
    twin = mapped(slots, Tensor.clone)
    slot = torch.arange(rows, dtype=torch.int32)
    for (_, attend), written in zip(WAYS.items(), (slots, twin), strict=True):
        attend(q, k, v, written, Rows(slot, torch.ones_like(slot), torch.full_like(slot, 3)), 0.1)
    for ours, theirs in zip(slots.planes, twin.planes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6 if encoding == "int8" else 0, atol=0)


@pytest.fixture
def threads() -> Iterator[None]:
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)


@each
@pytest.mark.usefixtures("threads")
def test_a_row_has_the_same_bits_beside_any_neighbours_and_on_any_number_of_threads(
    encoding: PlaneFormat, reading: str
) -> None:
    step = Step(encoding, reading)
    together = step.run(decode_attend)
    for count in (1, 3):
        torch.set_num_threads(count)
        for row in range(len(ROWS.slot)):
            alone = step.row(decode_attend, row)
            assert torch.equal(alone.out[0], together.out[row])
            assert torch.equal(alone.lse[0], together.lse[row])


@each
@pytest.mark.parametrize("way", WAYS)
def test_what_another_layer_has_written_is_read_with_the_bits_of_the_layer_that_wrote_it(
    way: str, encoding: PlaneFormat, reading: str
) -> None:
    step = Step(encoding, reading)
    written = step.run(WAYS[way])
    step.slots = step.after
    read = step.run(WAYS[way], is_written=False)
    assert torch.equal(read.out, written.out)
    assert torch.equal(read.lse, written.lse)
    assert all(torch.equal(*pair) for pair in zip(step.after.planes, step.slots.planes, strict=True))


@pytest.mark.parametrize("encoding", FORMATS)
@pytest.mark.parametrize("way", WAYS)
def test_with_all_pages_a_step_has_the_bits_of_one_without_a_reading(way: str, encoding: PlaneFormat) -> None:
    step, every = Step(encoding, "pages", torch.bfloat16), Step(encoding, "every", torch.bfloat16)
    every.slots = step.slots._replace(reading=None)
    want = every.run(WAYS[way])
    for limit in (ENTRIES // PAGE, EVERY_PAGE):
        step.limited(limit)
        found = step.run(WAYS[way])
        assert torch.equal(found.out, want.out)
        assert torch.equal(found.lse, want.lse)
        assert all(torch.equal(*pair) for pair in zip(step.after.planes, every.after.planes, strict=True))


@pytest.mark.parametrize("encoding", FORMATS)
@pytest.mark.parametrize("reading", ["ragged", "pages"])
def test_a_head_has_the_bits_that_it_has_alone_in_a_slot_of_what_it_reads(encoding: PlaneFormat, reading: str) -> None:
    step = Step(encoding, reading)
    out, lse = step.run(decode_attend)
    for row in LIVE:
        for head in range(HEADS):
            slot, (plane_head, first, _) = int(ROWS.slot[row]), step.place(row, head)
            index = [first + entry for entry in step.read(row, head).entries]
            planes = tuple(plane[slot : slot + 1, plane_head : plane_head + 1, index] for plane in step.after.planes)
            centers = None if step.centers is None else step.centers[slot : slot + 1, head : head + 1]
            count = torch.tensor([len(index)], dtype=torch.int32)
            rows, q = Rows(torch.zeros_like(count), count - 1, count), step.q[row : row + 1, head : head + 1]
            alone = decode_attend(q, None, None, Slots(encoding, planes, centers), rows, step.scale)
            assert torch.equal(out[row, head], alone.out[0, 0])
            assert torch.equal(lse[row, head], alone.lse[0, 0])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_in_one_slot_stays_there(way: str, dtype: torch.dtype) -> None:
    step = Step(dtype=dtype)
    for plane in step.slots.planes:
        plane[ROWS.slot[2]] = float("nan")
    out, _ = step.run(WAYS[way])
    assert out[2].isnan().all()
    assert out[[0, 3]].isfinite().all()


@each
@pytest.mark.parametrize("width", [40, 80])
def test_a_width_without_a_kernel_has_the_bits_of_the_reference(
    encoding: PlaneFormat, reading: str, width: int
) -> None:
    step = Step(encoding, reading, width=width)
    found, want = step.run(decode_attend), step.run(WAYS["reference"])
    assert torch.equal(found.out, want.out)
    assert torch.equal(found.lse, want.lse)


def test_a_kernel_is_compiled() -> None:
    assert is_native("decode_attend")


@pytest.mark.parametrize("reading", READINGS)
def test_an_encoding_without_a_kernel_runs_the_reference(reading: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENCODINGS, "unknown", ENCODINGS["int8"])  # type: ignore[misc]
    step = Step("int8", reading, torch.bfloat16)
    want, slots = step.run(WAYS["reference"]), step.after
    step.slots = step.slots._replace(encoding="unknown")  # type: ignore[arg-type]
    found = step.run(decode_attend)
    for ours, theirs in zip((*found, *flat(step.after)), (*want, *flat(slots)), strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0, equal_nan=True)
