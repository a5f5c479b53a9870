"""Decode attention on the device, for each encoding and reading, against the torch reference on the CPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ringkv.base.cache_spec import PlaneFormat
from ringkv.base.kv import KVChoice
from ringkv.base.page_counts import EVERY_PAGE
from ringkv.base.selectors import SnapKV
from ringkv.engine.build import build
from ringkv.kernels import decode_attend_reference, pages
from ringkv.kernels.attended import Attended
from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.encoding import ENCODINGS
from ringkv.kernels.gpu.tiling import Tiling
from ringkv.kernels.slots import Pages, Rows, flat
from tests.device.test_experts import no_waiting
from tests.engine import tiny
from tests.kernels.entry_steps import EACH, FORMATS, HEADS, Inputs, copied, step

pytestmark = pytest.mark.device

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
TOLERANCE = {FP32: 2e-5, FP16: 2e-3, BF16: 1e-2}
ENCODED = {FP32: 1e-4, FP16: 4e-3, BF16: 2e-2}
ROUNDING = {FP32: 2e-6, FP16: 2**-10, BF16: 2**-7}  # of digests
LIVE = [77, 4000, 0, 2048, 1]
PAGED = KVChoice("arkvale", budget=96, sinks=4, recent=16, select=SnapKV(window=8))
PAGES: dict[str, Any] = {"capacity": 320, "kv_page": 16}


def scale_of(inputs: Inputs) -> float:
    return float(inputs.q.shape[-1] ** -0.5)


def attend(inputs: Inputs, cut: Tiling | None = None) -> Attended:
    """Run the operator, or the kernels with this tiling."""
    if cut is None:
        return decode_attend(*inputs, scale_of(inputs))
    from ringkv.kernels.gpu import decode_attend as gpu  # loads Triton

    return Attended(*gpu.decode_attend(*inputs, scale_of(inputs), cut))


def compare(device: torch.device, inputs: Inputs, cut: Tiling | None = None) -> None:
    """Compare out, lse and all that may be written, after a call that waits for nothing."""
    attend(copied(inputs, device), cut)  # compiles
    on_device, (encoding, dtype) = copied(inputs, device), (inputs.slots.encoding, inputs.q.dtype)
    with no_waiting():
        found = attend(on_device, cut)
    want = decode_attend_reference.decode_attend(*inputs, scale_of(inputs))
    tolerance = (TOLERANCE if encoding == "plain" else ENCODED)[dtype]
    torch.testing.assert_close(found.out.cpu().float(), want[0].float(), atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(found.lse.cpu(), want[1], atol=max(1e-4, tolerance), rtol=1e-4)
    for ours, theirs in zip(on_device.slots.planes, inputs.slots.planes, strict=True):
        assert torch.equal(ours.cpu(), theirs)
    for ours, theirs in zip(flat(on_device.slots.reading), flat(inputs.slots.reading), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, atol=1e-6, rtol=ROUNDING[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("width", "groups", "page"), [(64, 1, 16), (80, 7, 32), (128, 4, 32), (128, 20, 16)])
@pytest.mark.parametrize(("encoding", "reading"), EACH)
def test_a_step_equals_the_reference(
    device: torch.device,
    encoding: PlaneFormat,
    reading: str,
    dtype: torch.dtype,
    width: int,
    groups: int,
    page: int,
) -> None:
    compare(device, step(encoding, reading, LIVE, dtype, groups, width, page))


@pytest.mark.parametrize(("encoding", "reading"), EACH)
@pytest.mark.parametrize("cut", [Tiling(1, 16, 2, 2), Tiling(3, 64, 4, 3), Tiling(64, 128, 8, 2)])
def test_any_tiling_gives_the_same_result(
    device: torch.device, encoding: PlaneFormat, reading: str, cut: Tiling
) -> None:
    compare(device, step(encoding, reading, LIVE, BF16, 4, 128), cut)


@pytest.mark.parametrize(("encoding", "reading"), EACH)
def test_without_a_new_token_a_step_reads_what_is_written(
    device: torch.device, encoding: PlaneFormat, reading: str
) -> None:
    compare(device, step(encoding, reading, LIVE, BF16, 4, 128)._replace(k=None, v=None))


@pytest.mark.parametrize("encoding", FORMATS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_with_all_pages_a_step_has_the_bits_of_one_without_a_reading(
    device: torch.device, encoding: PlaneFormat, dtype: torch.dtype
) -> None:
    inputs = copied(step(encoding, "pages", LIVE, dtype, 4, 128), device)
    assert isinstance(inputs.slots.reading, Pages)
    inputs.slots.reading.counts[:, 0] = EVERY_PAGE
    every = copied(inputs._replace(slots=inputs.slots._replace(reading=None)), device)
    found, want = attend(inputs), attend(every)
    for ours, theirs in zip((*found, *inputs.slots.planes), (*want, *every.slots.planes), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("encoding", FORMATS[1:])
@pytest.mark.parametrize("width", [64, 80, 128, 256])
def test_the_bytes_of_prefill_and_of_decode_are_equal_and_those_of_a_cpu(
    device: torch.device, encoding: PlaneFormat, width: int
) -> None:
    inputs = copied(step(encoding, "every", [2] * 500, FP32, 1, width), device)
    assert inputs.k is not None
    assert inputs.v is not None
    assert inputs.slots.centers is not None
    sizes = torch.logspace(-6, 6, 500, device=device)[:, None, None]
    inputs = inputs._replace(k=inputs.k * sizes, v=inputs.v * sizes)
    attend(inputs)
    slot, entry = inputs.rows.slot.long(), inputs.rows.entry.long()
    for place in (device, torch.device("cpu")):
        vectors = inputs.k - inputs.slots.centers[slot, :, :width], inputs.v
        encoded = [part for new in vectors for part in ENCODINGS[encoding].encode(new.to(place))]
        for plane, part in zip(inputs.slots.planes, encoded, strict=True):
            assert torch.equal(plane[slot, :, entry].to(place), part)


@pytest.mark.parametrize(("encoding", "reading"), EACH)
def test_a_captured_step_follows_lengths_places_and_choices_of_each_replay(
    device: torch.device, encoding: PlaneFormat, reading: str
) -> None:
    static = copied(step(encoding, reading, [4000, 1000, 500], BF16, 4, 128), device)
    attend(static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = attend(static)
    for live in ([4000, 0, 50], [9, 3333, 3999]):
        others = copied(step(encoding, reading, live, BF16, 4, 128), device)
        for ours, new in zip(flat(static), flat(others), strict=True):
            ours.zero_()[tuple(slice(size) for size in new.shape)] = new
        want = attend(copied(static, device))
        graph.replay()
        assert torch.equal(found.out, want.out)
        assert torch.equal(found.lse, want.lse)


@pytest.mark.parametrize(("encoding", "reading"), EACH)
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(
    device: torch.device, encoding: PlaneFormat, reading: str
) -> None:
    results = []
    for live in ([4000, 2000, 1], [3, 2000, 0]):
        inputs = copied(step(encoding, reading, [4000, 2000, 100], BF16, 4, 128), device)
        inputs.rows.live[:] = torch.tensor(live)
        inputs.rows.entry[[0, 2]] = 0
        results.append(attend(inputs).out[1])
    assert torch.equal(*results)


@pytest.mark.parametrize("count", [20, 1000, 8192])
def test_of_equal_scores_the_first_pages_are_selected(device: torch.device, count: int) -> None:
    from ringkv.kernels.gpu.select_pages import selected

    scores = torch.randint(-4, 5, (3, HEADS, 1, count), device=device).float()
    counts = torch.tensor([[count // 4, 1, 3], [8, 0, 1], [8, 2, 2]], dtype=torch.int32, device=device)
    pins = torch.full_like(scores[:, :, 0], float("-inf"))
    pins[0, :, count // 2 : count // 2 + 2] = float("inf")
    columns = [0, 1, 2], [0, 0, 0], [count * 32, count * 32 - 5, 3 * 32]
    rows = Rows(*(torch.tensor(column, dtype=torch.int32, device=device) for column in columns))
    reading = Pages(torch.empty(0), pins, counts)
    selection = selected(scores, reading, rows, 32)
    assert selection.lengths.tolist() == [count // 4 * 32, 8 * 32 - 5, 96]
    read = pages.selected(scores, reading, rows, 32)
    for row in range(3):
        for head in range(HEADS):
            want = read[row, head].nonzero()[:, 0]
            assert selection.pages[row, head, : len(want)].tolist() == want.tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("llama")
    tiny.save(made, "Llama")
    return made


def answer(
    folder: Path, device: str, graphs: str, kv: KVChoice | None = None, **changes: Any
) -> tuple[list[int], torch.Tensor]:
    """Return 40 tokens after a prompt of 200, and their logits."""
    chosen = {} if kv is None else {"kv": kv}
    engine = build(tiny.config(folder, device=device, graphs=graphs, **chosen, **changes))
    tiny.enter(engine, tiny.request(tiny.prompt(200)), slot=1)
    tokens, logits = tiny.decode(engine, 40, slot=1)
    return tokens, logits.cpu()


def compare_engines(folder: Path, kv: KVChoice, **changes: Any) -> None:
    """Compare tokens of the CPU, and of the device without and with graphs."""
    want = answer(folder, "cpu", "off", kv, **changes)
    for graphs in ("off", "compiled"):
        found = answer(folder, "cuda:0", graphs, kv, **changes)
        assert found[0] == want[0]
        torch.testing.assert_close(found[1], want[1], atol=1e-3, rtol=1e-3)


def test_the_devices_tokens_are_the_cpus_if_heads_divide_slots(device: torch.device, folder: Path) -> None:
    compare_engines(folder, tiny.choice("snapstream", budget=40, recent=8, heads="global"))


def test_the_devices_tokens_are_the_cpus_if_steps_read_pages(device: torch.device, folder: Path) -> None:
    compare_engines(folder, PAGED, **PAGES)


def test_reading_all_pages_gives_the_tokens_of_a_full_cache(device: torch.device, folder: Path) -> None:
    full = KVChoice("full", select=SnapKV(window=8))
    want, _ = answer(folder, "cuda:0", "compiled", full, capacity=320)
    found, _ = answer(folder, "cuda:0", "compiled", replace(full, policy="arkvale"), **PAGES)
    assert found == want


@pytest.mark.parametrize("kv_format", FORMATS[1:])
@pytest.mark.parametrize("kv", [None, PAGED])
def test_graphs_do_not_change_the_tokens_of_an_engine_with_encoded_slots(
    device: torch.device, folder: Path, kv_format: PlaneFormat, kv: KVChoice | None
) -> None:
    changes: dict[str, Any] = {"kv_format": kv_format, **(PAGES if kv else {})}
    want, found = (answer(folder, "cuda:0", graphs, kv, **changes) for graphs in ("off", "compiled"))
    assert found[0] == want[0]
    torch.testing.assert_close(found[1], want[1], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("kind", ["heads", "pages"])
def test_drafts_that_are_taken_back_leave_the_same_tokens(device: torch.device, folder: Path, kind: str) -> None:
    choices: dict[str, tuple[KVChoice, dict[str, Any]]] = {
        "heads": (tiny.choice("snapstream", budget=40, recent=8, heads="global"), {}),
        "pages": (PAGED, PAGES),
    }
    kv, changes = choices[kind]
    want, _ = answer(folder, "cuda:0", "off", kv, **changes)
    drafting = build(tiny.config(folder, device="cuda:0", kv=kv, speculate=3, **changes))
    tiny.enter(drafting, tiny.request(tiny.prompt(200)))
    tokens: list[int] = []
    while len(tokens) < 40:
        tokens += [token for token, _ in drafting.sample().read()[0] if token is not None]
        drafting.forward({0: (*want[len(tokens) : len(tokens) + 1], 5, 5)})
    assert tokens[:40] == want
