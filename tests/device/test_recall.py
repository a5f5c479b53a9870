"""Pages that are recalled from pinned host memory, on the device: kernels against those with all pages, and engines."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ringkv.base.kv import KVChoice
from ringkv.base.selectors import SnapKV
from ringkv.cache.tier import pinned
from ringkv.engine.build import build
from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.slots import Pages, Rows, Slots, mapped
from tests.engine import tiny
from tests.kernels.entry_steps import Inputs, copied
from tests.kernels.interpreted import SCALE
from tests.kernels.recall import PAGE, Recalled, random_steps

pytestmark = pytest.mark.device

KV = KVChoice("arkvale", budget=96, sinks=4, recent=16, select=SnapKV(window=8))
PAGES: dict[str, Any] = {"kv": KV, "capacity": 320, "kv_page": 16}


def test_memory_of_the_host_is_written_by_the_device_and_unpinned_when_it_is_freed(device: torch.device) -> None:
    like = torch.empty(0, dtype=torch.bfloat16, device=device)
    for _ in range(3):  # an address that is still pinned could not be pinned again
        memory = pinned(like)((3, 1000))
        assert memory.is_pinned()
        assert not memory.any()
        del memory


def on_device(device: torch.device, hosts: tuple[Tensor, ...], inputs: Inputs) -> tuple[tuple[Tensor, Tensor], Slots]:
    """Run a step on the device. If there are `hosts`, they are pinned memory that has the planes."""
    moved = copied(inputs, device)
    if hosts:
        for plane, new in zip(hosts, inputs.slots.planes, strict=True):
            plane.copy_(new)
        moved = moved._replace(slots=moved.slots._replace(planes=hosts))
    out, lse = decode_attend(*moved, SCALE)
    torch.cuda.synchronize()
    return (out.cpu(), lse.cpu()), copied(moved).slots


def promised(device: torch.device, q: Tensor, reading: Pages, rows: Rows) -> tuple[Tensor, Tensor]:
    """A `Promise` by the kernels, which `test_decode_attend` compares with the reference."""
    from ringkv.kernels.gpu.select_pages import select
    from ringkv.kernels.gpu.step import Step

    q, reading, rows = (mapped((part,), lambda tensor: tensor.to(device))[0] for part in (q, reading, rows))
    step = Step.of(q, None, None, Slots("plain", (), reading=reading), rows, SCALE)
    selection = select(step, reading, PAGE, with_shares=True)
    assert selection.shares is not None
    seen = torch.zeros(selection.pages.shape, dtype=torch.bool)
    for row, length in enumerate(selection.lengths.tolist()):
        seen[row].scatter_(1, selection.pages[row, :, : -(-length // PAGE)].long().cpu(), True)
    return seen, selection.shares.cpu()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("width", "places", "most"), [(128, 6, 6), (64, 9, 5), (80, 20, 12)])
def test_random_steps_have_the_bits_of_kernels_that_read_all_pages_in_place(
    device: torch.device, dtype: torch.dtype, width: int, places: int, most: int
) -> None:
    slots = Recalled.new(2 * places, places, width, dtype)
    like = torch.empty(0, dtype=dtype, device=device)
    hosts = tuple(pinned(like)(plane.shape) for plane in slots.host.planes)
    recall, every = partial(on_device, device, hosts), partial(on_device, device, ())
    for rows, running in random_steps(slots, 300, most, seed=places):
        slots.step(rows, running, recall, every, partial(promised, device))
    assert slots.recalls > 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("llama")
    tiny.save(made, "Llama")
    return made


@pytest.mark.parametrize("graphs", ["off", "compiled"])
def test_an_engine_that_recalls_has_the_bits_of_one_with_all_pages_on_the_device(
    device: torch.device, folder: Path, graphs: str
) -> None:
    found = []
    for resident in (0, 9):
        engine = build(tiny.config(folder, device=str(device), graphs=graphs, **PAGES, kv_resident=resident))
        tiny.enter(engine, tiny.request(tiny.prompt(250, 3), kv=replace(KV, budget=64)), slot=0)
        tiny.enter(engine, tiny.request(tiny.prompt(200)), slot=1)
        tokens, logits = tiny.decode(engine, 40, slot=1)
        found.append((tokens, logits.cpu()))
        if resident:
            (body,) = engine.batch.bodies
            assert all(plane.is_pinned() for plane in body.planes)
            assert engine.recalled(1) is not None
            packet = engine.export(1)
            want = tiny.decode(engine, 20, slot=1)
            engine.restore(packet, 2)
            assert tiny.decode(engine, 20, slot=2)[0] == want[0]
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])
