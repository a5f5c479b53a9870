"""The Triton kernels of attention over latents in Triton's interpreter on the CPU, against the reference and float64.

The interpreter cannot multiply bfloat16, so the kernels multiply float32 copies there.
"""

from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

from ringkv.base.cache_spec import PlaneFormat
from ringkv.kernels import decode_attend_reference, prefill_attend
from ringkv.kernels.encoding import LATENT_ENCODINGS
from tests.kernels.entry_steps import Inputs, copied
from tests.kernels.interpreted import SCALE, Cut, Result, decode_attend, prefill_latent, written_latents
from tests.kernels.latent_steps import attended, step

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
TOLERANCE = {FP32: 1e-5, FP16: 4e-3, BF16: 2e-2}
ENCODED: tuple[PlaneFormat, ...] = ("int8", "int4")


def attend(pool: ProcessPoolExecutor, inputs: Inputs, cut: Cut) -> tuple[Result, Inputs]:
    """Return out and lse, and the inputs afterwards."""
    found, slots = pool.submit(decode_attend, tuple(inputs), cut).result()
    return found, inputs._replace(slots=slots)


def compare(pool: ProcessPoolExecutor, inputs: Inputs, cut: Cut) -> Result:
    """Compare out and lse with float64, and the planes with the reference's; return out and lse."""
    twin, off = copied(inputs), TOLERANCE[inputs.q.dtype]
    decode_attend_reference.decode_attend(*twin, SCALE)
    found, after = attend(pool, inputs, cut)
    for ours, theirs in zip(found, attended(twin, SCALE), strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=off, rtol=off)
    for plane, wanted in zip(after.slots.planes, twin.slots.planes, strict=True):
        assert torch.equal(plane, wanted)
    return found


@pytest.mark.parametrize("encoding", LATENT_ENCODINGS)
@pytest.mark.parametrize(
    ("groups", "width", "cut"),
    [
        (20, 576, (2, 16)),  # whole groups, and a last one of 64; two programs share the queries' entries
        (3, 96, (1, 32)),  # one group, which is rotated in three blocks
        (16, 256, (3, 16)),  # whole groups only
        (1, 196, None),  # the last group is packed in chunks of 64 and 4
    ],
)
def test_a_step_equals_attention_in_float64_to_the_decoded_latents(
    pool: ProcessPoolExecutor, encoding: PlaneFormat, groups: int, width: int, cut: Cut
) -> None:
    out, lse = compare(pool, step(encoding, [37, 0, 1], FP32, groups, width), cut)
    assert not out[1].any()
    assert (lse[1] == -torch.inf).all()


@pytest.mark.parametrize(("encoding", "dtype"), [("plain", BF16), ("plain", FP16), ("int8", BF16), ("int4", FP16)])
def test_a_step_equals_float64_in_16_bits(pool: ProcessPoolExecutor, encoding: PlaneFormat, dtype: torch.dtype) -> None:
    compare(pool, step(encoding, [20, 3], dtype), None)


@pytest.mark.parametrize("encoding", ENCODED)
def test_a_slot_may_keep_no_latents_exactly(pool: ProcessPoolExecutor, encoding: PlaneFormat) -> None:
    inputs = step(encoding, [18, 1])
    assert inputs.slots.centers is not None
    centers = inputs.slots.centers[..., : inputs.q.shape[-1]].contiguous()
    compare(pool, inputs._replace(slots=inputs.slots._replace(centers=centers)), (2, 16))


@pytest.mark.parametrize("encoding", LATENT_ENCODINGS)
def test_a_cache_that_is_part_of_a_larger_tensor_is_addressed_by_its_strides(
    pool: ProcessPoolExecutor, encoding: PlaneFormat
) -> None:
    inputs = step(encoding, [20, 9], width=96)
    assert inputs.k is not None
    packed = torch.cat((inputs.k, inputs.q[:, :, 0]), -1)  # k is a view of one product
    planes = tuple(torch.stack((plane, plane), 1)[:, 0] for plane in inputs.slots.planes)
    slots = inputs.slots._replace(planes=planes)
    compare(pool, inputs._replace(k=packed[..., :96], slots=slots), (1, 16))


@pytest.mark.parametrize("encoding", ENCODED)
@pytest.mark.parametrize("width", [576, 100])
def test_the_bytes_are_those_of_the_reference_at_all_magnitudes(
    pool: ProcessPoolExecutor, encoding: PlaneFormat, width: int
) -> None:
    inputs = step(encoding, [3] * 6, groups=1, width=width)
    assert inputs.k is not None
    assert inputs.slots.centers is not None
    k = inputs.k * torch.logspace(-7, 7, 6)[:, None, None]
    k[0] = inputs.slots.centers[6, :, :width]  # slot 6 is of row 0: all that is left is 0
    k[2, 0, 0], k[3, 0, -64:] = 1e30, 0
    inputs = inputs._replace(k=k)
    twin, before = copied(inputs), inputs.slots.planes[0].clone()
    slots = pool.submit(written_latents, tuple(inputs)).result()
    decode_attend_reference.decode_attend(*twin, SCALE)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(slots.planes, twin.slots.planes, strict=True))
    assert not torch.equal(slots.planes[0], before)


@pytest.mark.parametrize("encoding", LATENT_ENCODINGS)
def test_what_is_not_live_does_not_matter_and_nan_stays_in_its_slot(
    pool: ProcessPoolExecutor, encoding: PlaneFormat
) -> None:
    inputs = step(encoding, [18, 20])
    want, _ = attend(pool, copied(inputs), (2, 16))
    for plane in inputs.slots.planes:
        if plane.is_floating_point():  # plain latents, or scales
            plane[0] = plane[2, :, 5] = float("nan")  # of no row, and of the first
            plane[1, :, 20:] = plane[1, :, 10] = float("nan")  # about to be overwritten
    found, _ = attend(pool, inputs, (2, 16))
    assert torch.equal(found[0][1], want[0][1])
    assert torch.equal(found[1][1], want[1][1])
    assert found[0][0].isnan().all()
    assert found[1][0].isnan().all()


@pytest.mark.slow  # interprets kernels
@pytest.mark.parametrize("encoding", LATENT_ENCODINGS)
def test_a_rows_result_does_not_depend_on_its_neighbours_bit_for_bit(
    pool: ProcessPoolExecutor, encoding: PlaneFormat
) -> None:
    results = []
    for live in ([40, 27, 1], [3, 27, 0]):
        inputs = step(encoding, [40, 27, 40])
        inputs.rows.live[:] = torch.tensor(live)
        inputs.rows.entry[:] = 0
        results.append(attend(pool, inputs, (3, 16))[0][0][1])
    assert torch.equal(*results)


@pytest.mark.parametrize(
    ("dtype", "tokens", "start", "groups", "width"),
    [
        (FP32, 1, 0, 16, 96),
        (FP32, 40, 0, 3, 100),
        (FP32, 9, 33, 20, 576),
        (FP16, 17, 64, 16, 72),
        (BF16, 30, 50, 6, 320),
    ],
)
def test_a_chunk_of_a_prompt_attends_as_in_the_reference(
    pool: ProcessPoolExecutor, dtype: torch.dtype, tokens: int, start: int, groups: int, width: int
) -> None:
    torch.manual_seed(tokens)
    q, latents = torch.randn(tokens, 1, groups, width) / 2, torch.randn(1, start + tokens, width) / 2
    q, latents = q.to(dtype), latents.to(dtype)
    found = pool.submit(prefill_latent, q, latents[0], start).result()
    segments = prefill_attend.table([prefill_attend.Segment(0, tokens, 0, 0, start, start + tokens)])
    window = torch.zeros(1, 1, groups, 8, width, dtype=dtype)
    want = prefill_attend.reference(q, None, None, prefill_attend.Staged(latents, latents, window, segments), SCALE)
    for ours, theirs in zip(found, want, strict=True):
        torch.testing.assert_close(ours.float(), theirs.float(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
