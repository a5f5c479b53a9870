"""Attention over encoded entries on the device against the torch references, and an engine with encoded slots."""

from pathlib import Path

import pytest
import torch

from ringkv.base.cache_spec import PlaneFormat
from ringkv.engine.build import build
from ringkv.kernels.encoded_attend import NO_KEY, EncodedPlanes
from ringkv.kernels.gpu.tiling import Tiling
from tests.engine import tiny
from tests.kernels.encoded import FORMATS

pytestmark = pytest.mark.device

TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 1e-2}
Tensors = list[torch.Tensor]


def some(
    device: torch.device, name: str, dtype: torch.dtype, live: list[int], groups: int, width: int, exact: int = 0
) -> Tensors:
    """Return the arguments of `encoded_attend`: entries of many magnitudes; slots are in reverse order of rows."""
    torch.manual_seed(width)
    rows, heads, capacity = len(live), 4, max(live)
    planes: Tensors = []
    for encoding in FORMATS[name].encodings:
        sizes = 3 * torch.rand(rows, heads, capacity, 1, device=device) + 0.01
        planes += encoding.encode(torch.randn(rows, heads, capacity, width, device=device) * sizes)
    first = torch.randn(rows, heads, exact, width, device=device)
    first[:, ::2, :1] = NO_KEY
    centers = torch.cat((torch.randn(rows, heads, width, device=device), first.flatten(2)), -1)
    vectors = [torch.randn(rows, heads, *shape, width, device=device).to(dtype) for shape in ((groups,), (), ())]
    slot = torch.arange(rows, dtype=torch.int32, device=device).flip(0)
    lives = torch.tensor(live, dtype=torch.int32, device=device)
    return [*vectors, *planes, centers, slot, (lives - 1).clamp(min=0) // 2, lives]


def scale_of(inputs: Tensors) -> float:
    """Return the usual scale of scores for q [B, H, Q, D]."""
    return float(inputs[0].shape[-1] ** -0.5)


def compare(name: str, inputs: Tensors, twin: Tensors, found: tuple[torch.Tensor, ...]) -> None:
    """Compare out, lse and the planes with the reference's."""
    out, lse = FORMATS[name].reference(*twin, scale_of(twin))
    tolerance = TOLERANCE[out.dtype]
    torch.testing.assert_close(found[0], out, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(found[1], lse, atol=tolerance, rtol=tolerance)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(inputs[3:7], twin[3:7], strict=True))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("width", "groups", "exact"), [(64, 1, 4), (80, 3, 0), (96, 4, 4), (128, 8, 4), (256, 20, 0)])
def test_it_equals_the_reference(
    device: torch.device, name: str, dtype: torch.dtype, width: int, groups: int, exact: int
) -> None:
    inputs = some(device, name, dtype, [4000, 0, 1, 2049, 77], groups, width, exact)
    twin = [t.clone() for t in inputs]
    compare(name, inputs, twin, FORMATS[name].attend(*inputs, scale_of(inputs)))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("cut", [Tiling(1, 16, 2, 2), Tiling(3, 64, 4, 3), Tiling(64, 128, 8, 2)])
def test_any_tiling_gives_the_same_result(device: torch.device, name: str, cut: Tiling) -> None:
    from ringkv.kernels.gpu.encoded_attend import decode_attend as attend
    from ringkv.kernels.gpu.forms import FORMS

    inputs = some(device, name, torch.bfloat16, [4000, 0, 1, 2049, 77], 4, 128, 4)
    twin = [t.clone() for t in inputs]
    q, k, v, *planes = inputs[:8]
    found = attend(FORMS[name], q, k, v, EncodedPlanes(*planes), *inputs[8:], scale_of(inputs), cut)
    compare(name, inputs, twin, found)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("width", [64, 80, 128, 256])
def test_the_bytes_of_prefill_and_of_decode_are_equal_and_those_of_a_cpu(
    device: torch.device, name: str, width: int
) -> None:
    rows = 500
    inputs = some(device, name, torch.float32, [2] * rows, 1, width)
    _, k, v, *planes, centers, slot, entry, _ = inputs
    sizes = torch.logspace(-6, 6, rows, device=device)[:, None, None]
    k *= sizes
    v *= sizes
    FORMATS[name].attend(*inputs, scale_of(inputs))
    new = k - centers[slot.long()], v
    for place in (device, torch.device("cpu")):
        both = zip(FORMATS[name].encodings, new, strict=True)
        encoded = [part for encoding, vectors in both for part in encoding.encode(vectors.to(place))]
        for plane, part in zip(planes, encoded, strict=True):
            assert torch.equal(plane[slot.long(), :, entry.long()].to(place), part)


@pytest.mark.parametrize("name", FORMATS)
def test_a_rows_result_does_not_depend_on_its_neighbours_bit_for_bit(device: torch.device, name: str) -> None:
    results = []
    for live in ([4000, 77, 1], [3, 77, 0]):
        inputs = some(device, name, torch.bfloat16, [4000, 77, 1], 4, 128)
        inputs[-1][:] = torch.tensor(live)
        inputs[-2][:] = 0
        results.append(FORMATS[name].attend(*inputs, scale_of(inputs)).out[1])
    assert torch.equal(*results)


@pytest.mark.parametrize("kv_format", FORMATS)
def test_graphs_do_not_change_the_tokens_of_an_engine_with_encoded_slots(
    device: torch.device, kv_format: PlaneFormat, tmp_path: Path
) -> None:
    tiny.save(tmp_path, "Llama")
    answers = []
    for graphs in ("off", "compiled"):
        one = build(tiny.config(tmp_path, device=str(device), graphs=graphs, kv_format=kv_format))
        tiny.enter(one, tiny.request([3 + 7 * i % 190 for i in range(200)]), slot=1)
        answers.append(tiny.decode(one, 20, slot=1))
    assert answers[0][0] == answers[1][0]
    torch.testing.assert_close(answers[0][1], answers[1][1], atol=1e-3, rtol=1e-3)
