"""Heads of different lengths and pages on the device: kernels against the torch references, and engines with both."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ringkv.base.cache_spec import MEANS
from ringkv.base.kv import HeadBudgets, KVChoice
from ringkv.base.selectors import SnapKV
from ringkv.engine.build import build
from ringkv.kernels import decode_attend, decode_attend_heads, decode_attend_pages
from ringkv.kernels.decode_attend_pages import EVERY_PAGE
from ringkv.kernels.gpu.tiling import Tiling
from tests.device.test_experts import no_waiting
from tests.device.test_kernels import SCALE, TOLERANCE, close
from tests.engine import tiny
from tests.kernels.budgets import HEADS, copied, heads_inputs, pages_inputs

pytestmark = pytest.mark.device

LIVE = [4000, 0, 1, 2049, 77]
PAGED = KVChoice("arkvale", budget=96, sinks=4, recent=16, select=SnapKV(window=8))
PAGES: dict[str, Any] = {"capacity": 320, "kv_page": 16}
Attend = Callable[..., tuple[Tensor, ...]]


def compare(attend: Attend, reference: Attend, inputs: list[Any], *means: Tensor) -> None:
    """Compare out, lse and everything that may be written, after a call that waits for nothing."""
    given = [*inputs, SCALE, *means]
    attend(*copied(given))  # compiles
    wanted = copied(given)
    with no_waiting():
        found = attend(*given)
    close(tuple(found), reference(*wanted))
    for ours, theirs in zip(inputs[3:], wanted[3:], strict=False):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(means, wanted[len(inputs) + 1 :], strict=True):
        torch.testing.assert_close(ours, theirs)


def compare_heads(inputs: list[Any], cut: Tiling | None = None) -> None:
    from ringkv.kernels.gpu.heads_attend import decode_attend_heads as kernels

    operator: Attend = partial(kernels, cut=cut) if cut else decode_attend_heads.decode_attend_heads
    compare(operator, decode_attend_heads.reference, inputs)


def compare_pages(inputs: list[Any], cut: Tiling | None = None, *means: Tensor) -> None:
    from ringkv.kernels.gpu.pages_attend import decode_attend_pages as kernels

    operator: Attend = partial(kernels, cut=cut) if cut else decode_attend_pages.decode_attend_pages
    compare(operator, decode_attend_pages.reference, inputs, *means)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("width", "groups"), [(64, 1), (80, 7), (128, 4), (128, 20), (256, 8)])
def test_heads_of_different_lengths_equal_the_reference(
    device: torch.device, dtype: torch.dtype, width: int, groups: int
) -> None:
    compare_heads(heads_inputs(LIVE, dtype, groups, width, device))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("width", "groups", "page"), [(64, 1, 16), (80, 7, 32), (128, 4, 32), (128, 20, 16)])
@pytest.mark.parametrize("is_mean", [True, False])
def test_pages_equal_the_reference_digests_bit_for_bit(
    device: torch.device, dtype: torch.dtype, width: int, groups: int, page: int, is_mean: bool
) -> None:
    """Slots of 4,000 and 2,048 entries end a page. The slot of 77 reads all."""
    compare_pages(pages_inputs([4000, 0, 1, 2048, 77], dtype, groups, width, is_mean, device, page))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("width", "groups"), [(64, 1), (80, 7), (128, 4)])
def test_estimated_pages_equal_the_reference(device: torch.device, dtype: torch.dtype, width: int, groups: int) -> None:
    means = torch.randn(5, HEADS, MEANS, width, device=device)
    compare_pages(pages_inputs([77, 0, 1, 2048, 4000], dtype, groups, width, True, device), None, means)


@pytest.mark.parametrize("splits", [1, 3, 64])
@pytest.mark.parametrize(("block", "warps", "stages"), [(16, 2, 2), (64, 4, 3), (128, 8, 2)])
def test_any_tiling_gives_the_same_result(
    device: torch.device, splits: int, block: int, warps: int, stages: int
) -> None:
    cut = Tiling(splits, block, warps, stages)
    compare_heads(heads_inputs(LIVE, torch.bfloat16, 4, 128, device), cut)
    compare_pages(pages_inputs(LIVE, torch.bfloat16, 4, 128, True, device), cut)


def test_without_new_keys_they_read_what_is_written(device: torch.device) -> None:
    for make, run in ((heads_inputs, compare_heads), (pages_inputs, compare_pages)):
        inputs = make(LIVE, torch.bfloat16, 4, 128, device=device)
        inputs[1] = inputs[2] = None
        run(inputs)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_with_all_pages_a_step_has_the_bits_of_decode_attention(device: torch.device, dtype: torch.dtype) -> None:
    inputs = pages_inputs(LIVE, dtype, 4, 128, True, device)
    inputs[7][:, 0] = EVERY_PAGE
    plain = copied([*inputs[:5], *inputs[8:]])
    found = decode_attend_pages.decode_attend_pages(*inputs, SCALE)
    want = decode_attend.decode_attend(*plain, SCALE)
    for one, other in zip((*found, *inputs[3:5]), (*want, *plain[3:5]), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("pages", [20, 1000, 8192])
def test_of_equal_scores_the_first_pages_are_selected(device: torch.device, pages: int) -> None:
    from ringkv.kernels.gpu.pages_attend import selected

    scores = torch.randint(-4, 5, (3, HEADS, 1, pages), device=device).float()
    counts = torch.tensor(
        [[pages // 4, 1, 3, 1, 0], [8, 0, 1, 1, 1], [8, 2, 2, 0, 0]], dtype=torch.int32, device=device
    )
    live = torch.tensor([pages * 32, pages * 32 - 5, 3 * 32], dtype=torch.int32, device=device)
    slot = torch.arange(3, dtype=torch.int32, device=device)
    pins = torch.full_like(scores[:, :, 0], float("-inf"))
    pins[0, :, pages // 2 : pages // 2 + 2] = float("inf")
    found, lengths = selected(scores, pins, counts, slot, live, 32)
    assert lengths.tolist() == [pages // 4 * 32, 8 * 32 - 5, 96]
    read = decode_attend_pages.selected(scores, pins, counts, live, 32)
    for row in range(3):
        for head in range(HEADS):
            want = read[row, head].nonzero()[:, 0]
            assert found[row, head, : len(want)].tolist() == want.tolist()


def test_a_captured_step_follows_lengths_places_and_choices_of_each_replay(device: torch.device) -> None:
    for make, attend in (
        (heads_inputs, decode_attend_heads.decode_attend_heads),
        (pages_inputs, decode_attend_pages.decode_attend_pages),
    ):
        static = make([4000, 1000, 500], torch.bfloat16, 4, 128, device=device)
        attend(*static, SCALE)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = attend(*static, SCALE)
        for live in ([4000, 0, 50], [9, 3333, 3999]):
            others = make(live, torch.bfloat16, 4, 128, device=device)
            for ours, new in zip(static, others, strict=True):
                ours.zero_()[tuple(slice(size) for size in new.shape)] = new
            want = attend(*copied(static), SCALE)
            graph.replay()
            assert torch.equal(out.out, want.out)
            assert torch.equal(out.lse, want.lse)


def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(device: torch.device) -> None:
    for make, attend in (
        (heads_inputs, decode_attend_heads.decode_attend_heads),
        (pages_inputs, decode_attend_pages.decode_attend_pages),
    ):
        results = []
        for live in ([4000, 2000, 1], [3, 2000, 0]):
            inputs = make([4000, 2000, 100], torch.bfloat16, 4, 128, device=device)
            inputs[-1][:] = torch.tensor(live)
            inputs[-2][[0, 2]] = 0
            results.append(attend(*inputs, SCALE).out[1])
        assert torch.equal(*results)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("llama")
    tiny.save(made, "Llama")
    return made


def answer(folder: Path, device: str, graphs: str, kv: KVChoice, **changes: Any) -> tuple[list[int], Tensor]:
    """Return 40 tokens after a prompt of 200, and their logits."""
    one = build(tiny.config(folder, device=device, graphs=graphs, kv=kv, **changes))
    tiny.enter(one, tiny.request(tiny.prompt(200)), slot=1)
    tokens, logits = tiny.decode(one, 40, slot=1)
    return tokens, logits.cpu()


def compare_engines(folder: Path, kv: KVChoice, **changes: Any) -> None:
    """Compare tokens of the CPU, and of the device without and with graphs."""
    want = answer(folder, "cpu", "off", kv, **changes)
    for graphs in ("off", "compiled"):
        found = answer(folder, "cuda:0", graphs, kv, **changes)
        assert found[0] == want[0]
        torch.testing.assert_close(found[1], want[1], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("heads", ["adaptive", "global"])
def test_the_devices_tokens_are_the_cpus_if_heads_divide_slots(
    device: torch.device, folder: Path, heads: HeadBudgets
) -> None:
    compare_engines(folder, tiny.choice("snapstream", budget=40, recent=8, heads=heads))


def test_the_devices_tokens_are_the_cpus_if_steps_read_pages(device: torch.device, folder: Path) -> None:
    compare_engines(folder, PAGED, **PAGES)


def test_reading_all_pages_gives_the_tokens_of_a_full_cache(device: torch.device, folder: Path) -> None:
    full = KVChoice("full", select=SnapKV(window=8))
    want, _ = answer(folder, "cuda:0", "compiled", full, capacity=320)
    every = KVChoice("arkvale", select=SnapKV(window=8))
    found, _ = answer(folder, "cuda:0", "compiled", every, **PAGES)
    assert found == want


@pytest.mark.parametrize("kind", ["heads", "pages"])
def test_drafts_that_are_taken_back_leave_the_same_tokens(device: torch.device, folder: Path, kind: str) -> None:
    choices: dict[str, tuple[KVChoice, dict[str, Any]]] = {
        "heads": (tiny.choice("snapstream", budget=40, recent=8, heads="adaptive"), {}),
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
