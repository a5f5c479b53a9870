"""The Triton kernels of decode attention in Triton's interpreter on the CPU, against the reference.

The interpreter cannot multiply bfloat16, so the kernels multiply float32 copies there.
"""

from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch

from ringkv.base.cache_spec import PlaneFormat
from ringkv.base.page_counts import EVERY_PAGE
from ringkv.kernels import decode_attend_reference
from ringkv.kernels.encoding import ENCODINGS
from ringkv.kernels.slots import Pages, Ragged, Rows, flat
from tests.kernels.entry_steps import EACH, FORMATS, HEADS, Inputs, copied, step
from tests.kernels.interpreted import SCALE, Cut, Result, decode_attend, written

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
TOLERANCE = {FP32: 2e-6, FP16: 2e-3, BF16: 1.6e-2}
ENCODED = {FP32: 1e-4, FP16: 4e-3, BF16: 2e-2}
SOME = [("plain", "every"), ("plain", "ragged"), ("plain", "pages"), ("int8", "ragged"), ("int4", "pages")]
ROUNDING = {FP32: 2e-6, FP16: 2**-10, BF16: 2**-7}  # of digests: the interpreter truncates to bfloat16


def attend(pool: ProcessPoolExecutor, inputs: Inputs, cut: Cut) -> tuple[Result, Inputs]:
    """Return out and lse, and the inputs afterwards."""
    found, slots = pool.submit(decode_attend, tuple(inputs), cut).result()
    return found, inputs._replace(slots=slots)


def compare(pool: ProcessPoolExecutor, inputs: Inputs, cut: Cut) -> Result:
    """Compare out, lse and all that may be written; return out and lse."""
    twin = copied(inputs)
    want, (found, after) = decode_attend_reference.decode_attend(*twin, SCALE), attend(pool, inputs, cut)
    is_plain, dtype = inputs.slots.encoding == "plain", found[0].dtype
    off, off_lse = (TOLERANCE[dtype], TOLERANCE[FP32]) if is_plain else (ENCODED[dtype], ENCODED[dtype])
    torch.testing.assert_close(found[0].float(), want[0].float(), atol=off, rtol=off)
    torch.testing.assert_close(found[1], want[1], atol=off_lse, rtol=off_lse)
    for ours, theirs in zip(after.slots.planes, twin.slots.planes, strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(flat(after.slots.reading), flat(twin.slots.reading), strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=ROUNDING[dtype])
    return found


@pytest.mark.parametrize(("encoding", "reading"), EACH)
def test_a_step_equals_the_reference(pool: ProcessPoolExecutor, encoding: PlaneFormat, reading: str) -> None:
    """If rows read pages, that of 160 entries reads 5 of 10 and ends one. The first one reads all of its own."""
    out, lse = compare(pool, step(encoding, reading, [64, 160, 0, 33]), (2, 32))
    assert not out[2].any()
    assert (lse[2] == -torch.inf).all()


@pytest.mark.slow  # interprets kernels
@pytest.mark.parametrize(
    ("encoding", "reading", "dtype", "groups", "width"),
    [
        *[("plain", "every", BF16, 20, 80), ("plain", "every", FP16, 1, 128), ("plain", "ragged", FP16, 7, 48)],
        *[("plain", "ragged", BF16, 4, 80), ("plain", "pages", BF16, 1, 80)],
        *[("int8", "every", BF16, 20, 80), ("int8", "pages", BF16, 2, 48), ("int8", "ragged", FP16, 1, 64)],
        *[("int4", "every", FP16, 3, 80), ("int4", "pages", BF16, 2, 64), ("int4", "ragged", FP32, 20, 128)],
    ],
)
def test_groupings_widths_and_dtypes_equal_the_reference(
    pool: ProcessPoolExecutor, encoding: PlaneFormat, reading: str, dtype: torch.dtype, groups: int, width: int
) -> None:
    compare(pool, step(encoding, reading, [17, 112], dtype, groups, width), (2, 16))


@pytest.mark.slow  # interprets kernels
@pytest.mark.parametrize(("encoding", "reading"), SOME)
@pytest.mark.parametrize("cut", [(7, 16), None])
def test_any_tiling_gives_the_same_result(
    pool: ProcessPoolExecutor, encoding: PlaneFormat, reading: str, cut: Cut
) -> None:
    compare(pool, step(encoding, reading, [5, 144]), cut)


@pytest.mark.slow  # interprets kernels
@pytest.mark.parametrize(("encoding", "reading"), SOME)
def test_without_a_new_token_a_step_reads_what_is_written(
    pool: ProcessPoolExecutor, encoding: PlaneFormat, reading: str
) -> None:
    compare(pool, step(encoding, reading, [32, 112])._replace(k=None, v=None), (2, 16))


def test_a_head_with_many_times_the_usual_entries_has_longer_splits(pool: ProcessPoolExecutor) -> None:
    """If a head has one split on average, any head has four at most: here 307 entries are four of 80."""
    inputs = step("plain", "ragged", [160])
    places = torch.tensor([[[0, 0], [0, 0]], [[0, -10], [7, 290]]], dtype=torch.int32)
    rows = Rows(*(torch.tensor([n], dtype=torch.int32) for n in (1, 16, 17)))
    compare(pool, inputs._replace(slots=inputs.slots._replace(reading=Ragged(places)), rows=rows), (1, 16))


@pytest.mark.parametrize("encoding", FORMATS)
def test_a_cache_that_is_part_of_a_larger_tensor_is_addressed_by_its_strides(
    pool: ProcessPoolExecutor, encoding: PlaneFormat
) -> None:
    inputs = step(encoding, "every", [30, 9])
    assert inputs.k is not None
    assert inputs.v is not None
    packed = torch.cat((inputs.k, inputs.v), 1)  # k and v are views of one product
    planes = tuple(torch.stack((plane, plane), 1)[:, 0] for plane in inputs.slots.planes)
    slots = inputs.slots._replace(planes=planes)
    compare(pool, inputs._replace(k=packed[:, :HEADS], v=packed[:, HEADS:], slots=slots), (2, 32))


@pytest.mark.slow  # interprets kernels
@pytest.mark.parametrize(("encoding", "reading"), SOME)
def test_what_is_not_live_does_not_matter_and_nan_stays_in_its_slot(
    pool: ProcessPoolExecutor, encoding: PlaneFormat, reading: str
) -> None:
    inputs = step(encoding, reading, [18, 20])
    want, _ = attend(pool, copied(inputs), (2, 16))
    for plane in inputs.slots.planes:
        if plane.is_floating_point():  # plain vectors, or scales
            plane[0] = plane[2] = float("nan")  # of no row, and of the first
            if reading != "ragged":
                plane[1, :, 20:] = plane[1, :, int(inputs.rows.entry[1])] = float("nan")  # about to be overwritten
    found, _ = attend(pool, inputs, (2, 16))
    assert torch.equal(found[0][1], want[0][1])
    assert torch.equal(found[1][1], want[1][1])
    assert found[0][0].isnan().all()


@pytest.mark.slow  # interprets kernels
@pytest.mark.parametrize(("encoding", "reading"), SOME)
def test_a_rows_result_does_not_depend_on_its_neighbours_bit_for_bit(
    pool: ProcessPoolExecutor, encoding: PlaneFormat, reading: str
) -> None:
    results = []
    for live in ([64, 100, 1], [3, 100, 0]):
        inputs = step(encoding, reading, [64, 100, 64])
        inputs.rows.live[:] = torch.tensor(live)
        inputs.rows.entry[[0, 2]] = 0
        results.append(attend(pool, inputs, (3, 16))[0][0][1])
    assert torch.equal(*results)


@pytest.mark.slow  # interprets kernels
@pytest.mark.parametrize("encoding", FORMATS)
def test_with_all_pages_a_step_has_the_bits_of_one_without_a_reading(
    pool: ProcessPoolExecutor, encoding: PlaneFormat
) -> None:
    inputs = step(encoding, "pages", [100, 0, 48])
    assert isinstance(inputs.slots.reading, Pages)
    inputs.slots.reading.counts[:, 0] = EVERY_PAGE
    every = copied(inputs._replace(slots=inputs.slots._replace(reading=None)))
    (found, after), (want, others) = attend(pool, inputs, (3, 32)), attend(pool, every, (3, 32))
    for ours, theirs in zip((*found, *after.slots.planes), (*want, *others.slots.planes), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.slow  # interprets kernels
@pytest.mark.parametrize("encoding", FORMATS[1:])
@pytest.mark.parametrize("width", [40, 96, 256])
def test_the_bytes_are_those_of_the_reference_at_all_magnitudes(
    pool: ProcessPoolExecutor, encoding: PlaneFormat, width: int
) -> None:
    inputs = step(encoding, "every", [3] * 6, groups=1, width=width)
    sizes = torch.logspace(-7, 7, 6)[:, None, None]
    assert inputs.k is not None
    assert inputs.v is not None
    assert inputs.slots.centers is not None
    k, v = inputs.k * sizes, inputs.v * sizes
    k[0], v[1] = inputs.slots.centers[6, :, :width], 0  # slot 6 is of row 0: both vectors are 0
    v[2, 0, 0], v[2, 1] = 1e30, 2.0 ** torch.randint(-30, 30, (width,))
    inputs = inputs._replace(k=k, v=v)
    twin = copied(inputs)
    slots = pool.submit(written, tuple(inputs)).result()
    decode_attend_reference.decode_attend(*twin, SCALE)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(slots.planes, twin.slots.planes, strict=True))


@pytest.mark.slow  # interprets kernels
def test_more_queries_than_one_program_processes_are_divided(pool: ProcessPoolExecutor) -> None:
    compare(pool, step("plain", "every", [60, 0, 33], groups=70), (3, 32))


@pytest.mark.slow  # interprets kernels
def test_a_page_is_as_long_as_the_slot_says(pool: ProcessPoolExecutor) -> None:
    compare(pool, step("int8", "pages", [64, 256], page=32), (2, 16))


@pytest.mark.parametrize("reading", ["every", "ragged", "pages"])
def test_an_encoding_without_a_triton_form_runs_the_reference(reading: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from ringkv.kernels.gpu.decode_attend import decode_attend  # it launches nothing, so it needs no interpreter

    monkeypatch.setitem(ENCODINGS, "unknown", ENCODINGS["int8"])  # type: ignore[misc]
    inputs = step("int8", reading, [64, 160, 0, 33])
    twin, slots = copied(inputs), inputs.slots._replace(encoding="unknown")  # type: ignore[arg-type]
    found = decode_attend(*inputs._replace(slots=slots), SCALE)
    want = decode_attend_reference.decode_attend(*twin, SCALE)
    for ours, theirs in zip((*found, *slots.planes), (*want, *twin.slots.planes), strict=True):
        assert torch.equal(ours, theirs)


def test_the_operator_runs_the_kernels_on_cuda() -> None:
    import_module("ringkv.kernels.decode_attend")
    assert torch._C._dispatch_has_kernel_for_dispatch_key("ringkv::decode_attend", "CUDA")
