"""Attention over encoded latents on the device against float64, and an engine with encoded latents."""

from pathlib import Path

import pytest
import torch

from ringkv.base.cache_spec import PlaneFormat
from ringkv.engine.build import build
from ringkv.kernels.encoded_latents import ATTEND, ENCODINGS, reference
from ringkv.kernels.gpu.tiling import Tiling
from tests.engine import tiny
from tests.engine.test_golden import MODELS
from tests.kernels.encoded_latents import Tensors, attended, step

pytestmark = pytest.mark.device
TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
LIVE = [4000, 0, 1, 2049, 77]


def scale_of(inputs: Tensors) -> float:
    """Return a scale with which scores are of order 1 for q [B, 1, G, D]."""
    return float(inputs[0].shape[-1] ** -0.5)


def compare(name: str, inputs: Tensors, cut: Tiling | None = None) -> None:
    """Compare out and lse with float64, and the planes with those of the CPU's reference."""
    twin, scale, off = [t.cpu().clone() for t in inputs], scale_of(inputs), TOLERANCE[inputs[0].dtype]
    reference(ENCODINGS[name], *twin, scale)
    if cut is None:
        found: tuple[torch.Tensor, ...] = ATTEND[name](*inputs, scale)
    else:
        from ringkv.kernels.gpu.encoded_latents import LatentPlanes, decode_attend
        from ringkv.kernels.gpu.latent_forms import LATENT_FORMS

        planes = LatentPlanes(*inputs[2:5])
        found = decode_attend(LATENT_FORMS[name], *inputs[:2], planes, *inputs[5:], scale, cut)
    for ours, theirs in zip(found, attended(name, twin, scale), strict=True):
        torch.testing.assert_close(ours.double().cpu(), theirs, atol=off, rtol=off)
    assert all(torch.equal(ours.cpu(), theirs) for ours, theirs in zip(inputs[2:4], twin[2:4], strict=True))


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("groups", "width"), [(16, 576), (20, 576), (128, 576), (3, 100), (16, 320)])
def test_a_step_equals_attention_in_float64_to_the_decoded_latents(
    device: torch.device, name: str, dtype: torch.dtype, groups: int, width: int
) -> None:
    compare(name, step(name, LIVE, dtype, groups, width, device=device))


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("cut", [Tiling(1, 16, 4, 2), Tiling(3, 32, 8, 3), Tiling(64, 32, 8, 2)])
def test_any_tiling_gives_the_same_result(device: torch.device, name: str, cut: Tiling) -> None:
    compare(name, step(name, LIVE, torch.bfloat16, 16, 576, device=device), cut)


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("width", [576, 320, 100])
def test_the_bytes_of_prefill_and_of_decode_are_equal_and_those_of_a_cpu(
    device: torch.device, name: str, width: int
) -> None:
    rows = 500
    inputs = step(name, [2] * rows, torch.float32, 1, width, device=device)
    _, k, *planes, centers, slot, entry, _ = inputs
    k *= torch.logspace(-6, 6, rows, device=device)[:, None, None]
    ATTEND[name](*inputs, scale_of(inputs))
    new = k - centers[slot.long(), :, :width]
    for place in (device, torch.device("cpu")):
        for plane, part in zip(planes, ENCODINGS[name].encode(new.to(place)), strict=True):
            assert torch.equal(plane[slot.long(), :, entry.long()].to(place), part)


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_rows_result_does_not_depend_on_its_neighbours_bit_for_bit(device: torch.device, name: str) -> None:
    results = []
    for live in ([4000, 77, 1], [3, 77, 0]):
        inputs = step(name, [4000, 77, 1], torch.bfloat16, 16, 576, device=device)
        inputs[-1][:] = torch.tensor(live)
        inputs[-2][:] = 0
        results.append(ATTEND[name](*inputs, scale_of(inputs)).out[1])
    assert torch.equal(*results)


@pytest.mark.parametrize("kv_format", ENCODINGS)
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
