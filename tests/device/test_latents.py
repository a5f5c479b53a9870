"""Attention over latents of each encoding on the device against float64, and an engine with encoded latents."""

from pathlib import Path

import pytest
import torch

from ringkv.base.cache_spec import PlaneFormat
from ringkv.engine.build import build
from ringkv.kernels import decode_attend_reference, prefill_attend
from ringkv.kernels.attended import Attended
from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.encoding import LATENT_ENCODINGS
from ringkv.kernels.gpu.tiling import Tiling
from ringkv.kernels.latent_attend import StagedLatents, prefill_attend_latent
from ringkv.kernels.prefill_attend import Staged
from tests.device.test_prefill_attend import SCALE, close
from tests.engine import tiny
from tests.engine.test_golden import MODELS
from tests.kernels.entry_steps import Inputs, copied
from tests.kernels.latent_steps import attended, step

pytestmark = pytest.mark.device
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
ENCODED: tuple[PlaneFormat, ...] = ("int8", "int4")
LIVE = [4000, 0, 1, 2049, 77]


def scale_of(inputs: Inputs) -> float:
    """Return a scale with which scores are of order 1."""
    return float(inputs.q.shape[-1] ** -0.5)


def attend(inputs: Inputs, cut: Tiling | None = None) -> Attended:
    """Run the operator, or the kernels with this tiling."""
    if cut is None:
        return decode_attend(*inputs, scale_of(inputs))
    from ringkv.kernels.gpu import decode_attend as gpu  # loads Triton

    return Attended(*gpu.decode_attend(*inputs, scale_of(inputs), cut))


def compare(device: torch.device, inputs: Inputs, cut: Tiling | None = None) -> None:
    """Compare out and lse with float64, and the planes with those of the CPU's reference."""
    on_device, off = copied(inputs, device), TOLERANCE[inputs.q.dtype]
    found = attend(on_device, cut)
    decode_attend_reference.decode_attend(*inputs, scale_of(inputs))
    for ours, theirs in zip(found, attended(inputs, scale_of(inputs)), strict=True):
        torch.testing.assert_close(ours.double().cpu(), theirs, atol=off, rtol=off)
    for plane, wanted in zip(on_device.slots.planes, inputs.slots.planes, strict=True):
        assert torch.equal(plane.cpu(), wanted)


@pytest.mark.parametrize("encoding", LATENT_ENCODINGS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("groups", "width"), [(16, 576), (20, 576), (128, 576), (3, 100), (16, 320)])
def test_a_step_equals_attention_in_float64_to_the_decoded_latents(
    device: torch.device, encoding: PlaneFormat, dtype: torch.dtype, groups: int, width: int
) -> None:
    compare(device, step(encoding, LIVE, dtype, groups, width))


@pytest.mark.parametrize("encoding", LATENT_ENCODINGS)
@pytest.mark.parametrize("cut", [Tiling(1, 16, 4, 2), Tiling(3, 32, 8, 3), Tiling(64, 32, 8, 2)])
def test_any_tiling_gives_the_same_result(device: torch.device, encoding: PlaneFormat, cut: Tiling) -> None:
    compare(device, step(encoding, LIVE, torch.bfloat16, 16, 576), cut)


@pytest.mark.parametrize("encoding", ENCODED)
@pytest.mark.parametrize("width", [576, 320, 100])
def test_the_bytes_of_prefill_and_of_decode_are_equal_and_those_of_a_cpu(
    device: torch.device, encoding: PlaneFormat, width: int
) -> None:
    inputs = copied(step(encoding, [2] * 500, torch.float32, 1, width), device)
    assert inputs.k is not None
    assert inputs.slots.centers is not None
    inputs = inputs._replace(k=inputs.k * torch.logspace(-6, 6, 500, device=device)[:, None, None])
    attend(inputs)
    slot, entry = inputs.rows.slot.long(), inputs.rows.entry.long()
    new = inputs.k - inputs.slots.centers[slot, :, :width]
    for place in (device, torch.device("cpu")):
        encoded = LATENT_ENCODINGS[encoding].encode(new.to(place))
        for plane, part in zip(inputs.slots.planes, encoded, strict=True):
            assert torch.equal(plane[slot, :, entry].to(place), part)


@pytest.mark.parametrize("encoding", LATENT_ENCODINGS)
def test_a_rows_result_does_not_depend_on_its_neighbours_bit_for_bit(
    device: torch.device, encoding: PlaneFormat
) -> None:
    results = []
    for live in ([4000, 77, 1], [3, 77, 0]):
        inputs = copied(step(encoding, [4000, 77, 1], torch.bfloat16, 16, 576), device)
        inputs.rows.live[:] = torch.tensor(live)
        inputs.rows.entry[:] = 0
        results.append(attend(inputs).out[1])
    assert torch.equal(*results)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("chunk", "groups"), [(64, 16), (300, 20), (512, 128)])
def test_prefill_equals_the_reference(device: torch.device, dtype: torch.dtype, chunk: int, groups: int) -> None:
    staged, window, length, width = 1024, 64, 900, 576
    latents = torch.zeros(1, staged, width, device=device, dtype=dtype)
    queries = torch.zeros(1, 1, groups, window, width, device=device, dtype=dtype)
    other, others = latents.clone(), queries.clone()
    for start in range(0, length, chunk):
        q, k = ((torch.randn(chunk, 1, *more, width, device=device) / 2).to(dtype) for more in ((groups,), ()))
        span = prefill_attend.table([prefill_attend.Segment(0, min(chunk, staged - start), 0, 0, start, length)])
        found = prefill_attend_latent(q, k, StagedLatents(latents, queries, span), SCALE)
        close(found, prefill_attend.reference(q, k, k, Staged(other, other, others, span), SCALE))
    assert torch.equal(latents, other)
    assert torch.equal(queries, others)


def test_prefill_stores_no_scores(device: torch.device) -> None:
    chunk, groups, width, staged = 1024, 16, 576, 32768
    latents = torch.zeros(1, staged, width, device=device, dtype=torch.bfloat16)
    window = torch.zeros(1, 1, groups, 64, width, device=device, dtype=torch.bfloat16)
    q = torch.randn(chunk, 1, groups, width, device=device).bfloat16()
    k = torch.randn(chunk, 1, width, device=device).bfloat16()
    segments = prefill_attend.table([prefill_attend.Segment(0, chunk, 0, 0, staged - chunk, staged)])
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    prefill_attend_latent(q, k, StagedLatents(latents, window, segments), SCALE)
    assert torch.cuda.max_memory_allocated() - before < 4 * q.nbytes


@pytest.mark.parametrize("kv_format", ENCODED)
def test_graphs_do_not_change_the_tokens_of_an_engine_with_encoded_latents(
    device: torch.device, kv_format: PlaneFormat, tmp_path: Path
) -> None:
    kind, changes = MODELS["deepseek-v3"]
    tiny.save(tmp_path, kind, **changes)
    answers = []
    for graphs in ("off", "compiled"):
        one = build(tiny.config(tmp_path, device=str(device), graphs=graphs, kv_format=kv_format, kv_format_skip=1))
        tiny.enter(one, tiny.request([3 + 7 * i % 190 for i in range(200)]), slot=1)
        answers.append(tiny.decode(one, 20, slot=1))
    assert answers[0][0] == answers[1][0]
    torch.testing.assert_close(answers[0][1], answers[1][1], atol=1e-3, rtol=1e-3)
