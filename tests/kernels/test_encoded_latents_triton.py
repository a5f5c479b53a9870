"""The Triton kernels of attention over encoded latents in Triton's interpreter, against torch and float64."""

from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from ringkv.kernels.encoded_latents import ENCODINGS, reference
from tests.kernels.encoded_latents import Tensors, attended, step
from tests.kernels.interpreted import SCALE, Cut, Result, encoded_latent, encoded_latent_write

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def some(name: str, live: list[int], dtype: torch.dtype = torch.float32, groups: int = 3, width: int = 160) -> Tensors:
    return step(name, live, dtype, groups, width)


def compare(pool: ProcessPoolExecutor, name: str, inputs: Tensors, cut: Cut) -> Result:
    """Compare out and lse with float64, and the planes with the reference's; return out and lse."""
    twin, off = [t.clone() for t in inputs], TOLERANCE[inputs[0].dtype]
    reference(ENCODINGS[name], *twin, SCALE)
    found, planes = pool.submit(encoded_latent, name, inputs, cut).result()
    for ours, theirs in zip(found, attended(name, twin, SCALE), strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=off, rtol=off)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(planes, twin[2:4], strict=True))
    return found


@pytest.mark.parametrize("name", ENCODINGS)
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
    pool: ProcessPoolExecutor, name: str, groups: int, width: int, cut: Cut
) -> None:
    out, lse = compare(pool, name, some(name, [37, 0, 1], groups=groups, width=width), cut)
    assert not out[1].any()
    assert (lse[1] == -torch.inf).all()


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_step_equals_float64_in_16_bits(pool: ProcessPoolExecutor, name: str, dtype: torch.dtype) -> None:
    compare(pool, name, some(name, [20, 3], dtype), None)


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_slot_may_keep_no_latents_exactly(pool: ProcessPoolExecutor, name: str) -> None:
    inputs = some(name, [18, 1])
    inputs[4] = inputs[4][..., : inputs[0].shape[-1]].contiguous()
    compare(pool, name, inputs, (2, 16))


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_cache_that_is_part_of_a_larger_tensor_is_addressed_by_its_strides(
    pool: ProcessPoolExecutor, name: str
) -> None:
    q, k, latents, scales, *others = some(name, [20, 9], width=96)
    packed = torch.cat((k, q[:, :, 0]), -1)  # k is a view of one product
    planes = [torch.stack((plane, plane + 1), 1)[:, 0] for plane in (latents, scales)]
    compare(pool, name, [q, packed[..., :96], *planes, *others], (1, 16))


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("width", [576, 100])
def test_the_bytes_are_those_of_the_reference_at_all_magnitudes(
    pool: ProcessPoolExecutor, name: str, width: int
) -> None:
    q, k, *others = some(name, [3] * 6, groups=1, width=width)
    k *= torch.logspace(-7, 7, 6)[:, None, None]
    k[0] = others[2][6, :, :width]  # slot 6 is of row 0: all that is left is 0
    k[2, 0, 0], k[3, 0, -64:] = 1e30, 0
    planes = pool.submit(encoded_latent_write, name, [k, *[t.clone() for t in others]]).result()
    twin = [t.clone() for t in others]
    reference(ENCODINGS[name], q, k, *twin, SCALE)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(planes, twin[:2], strict=True))
    assert not torch.equal(planes[0], others[0])


@pytest.mark.parametrize("name", ENCODINGS)
def test_entries_that_are_not_live_do_not_matter_and_nan_stays_in_its_slot(
    pool: ProcessPoolExecutor, name: str
) -> None:
    inputs = some(name, [18, 18])
    want, _ = pool.submit(encoded_latent, name, [t.clone() for t in inputs], (2, 16)).result()
    scales: Tensor = inputs[3]
    scales[1, :, 18:] = float("nan")  # of row 1
    scales[2, :, 5] = float("nan")  # of row 0
    found, _ = pool.submit(encoded_latent, name, inputs, (2, 16)).result()
    assert torch.equal(found[0][1], want[0][1])
    assert torch.equal(found[1][1], want[1][1])
    assert found[0][0].isnan().all()
    assert found[1][0].isnan().all()


def test_a_rows_result_does_not_depend_on_its_neighbours_bit_for_bit(pool: ProcessPoolExecutor) -> None:
    results = []
    for live in ([40, 27, 1], [3, 27, 0]):
        inputs = some("int8", [40, 27, 40])
        inputs[-1][:] = torch.tensor(live)
        inputs[-2][:] = 0
        results.append(pool.submit(encoded_latent, "int8", inputs, (3, 16)).result()[0][0][1])
    assert torch.equal(*results)
