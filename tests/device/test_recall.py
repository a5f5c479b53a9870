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
from ringkv.cache.recall_body import RecallBody
from ringkv.cache.tier import pinned
from ringkv.engine.build import build
from ringkv.kernels import decode_attend_pages, decode_attend_recall
from tests.device.test_kernels import SCALE
from tests.engine import tiny
from tests.kernels.recall import PAGE, Slots, random_steps

pytestmark = pytest.mark.device

KV = KVChoice("arkvale", budget=96, sinks=4, recent=16, select=SnapKV(window=8))
PAGES: dict[str, Any] = {"kv": KV, "capacity": 320, "kv_page": 16}
HOSTS = slice(3, 5)


def test_memory_of_the_host_is_written_by_the_device_and_unpinned_when_it_is_freed(device: torch.device) -> None:
    like = torch.empty(0, dtype=torch.bfloat16, device=device)
    for _ in range(3):  # an address that is still pinned could not be pinned again
        memory = pinned(like)((3, 1000))
        assert memory.is_pinned()
        assert not memory.any()
        del memory


def to_device(inputs: list[Any], device: torch.device, hosts: list[Tensor]) -> list[Any]:
    """Return arguments on the device, but the planes of the host in pinned memory."""
    moved = [one.to(device) for one in inputs]
    for own, new in zip(hosts, inputs[HOSTS], strict=True):
        own.copy_(new)
    return [*moved[:3], *hosts, *moved[5:]]


def run(kind: Any, device: torch.device, hosts: list[Tensor], inputs: list[Any]) -> Any:
    moved = to_device(inputs, device, hosts) if hosts else [one.to(device) for one in inputs]
    found = kind(*moved, SCALE)
    torch.cuda.synchronize()
    return tuple(one.cpu() for one in found), [one.cpu().clone() for one in moved[3:]]


def prefetched(device: torch.device, hosts: list[Tensor], inputs: list[Any]) -> list[Tensor]:
    for own, new in zip(hosts, inputs[1:3], strict=True):
        own.copy_(new)
    moved = [inputs[0].to(device), *hosts, *(one.to(device) for one in inputs[3:])]
    decode_attend_recall.prefetch_recall(*moved, SCALE)
    torch.cuda.synchronize()
    return [one.cpu().clone() for one in moved[1:]]


def promised(device: torch.device, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """A `Promise` by the kernels, which `test_budgets` compares with the reference."""
    from ringkv.kernels.gpu.pages_attend import scores, selected

    q, digests, pins, counts, slot, live = (one.to(device) for one in inputs)
    found = scores(q, digests, counts, slot, live, PAGE, SCALE)
    shares = torch.zeros(pins[slot.long()].shape, device=device)
    pages, lengths = selected(found, pins, counts, slot, live, PAGE, shares)
    seen = torch.zeros(pages.shape, dtype=torch.bool)
    for row, length in enumerate(lengths.tolist()):
        seen[row].scatter_(1, pages[row, :, : -(-length // PAGE)].long().cpu(), True)
    return seen, shares.cpu()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("width", "places", "most"), [(128, 6, 6), (64, 9, 5), (80, 20, 12)])
def test_random_steps_have_the_bits_of_kernels_that_read_all_pages_in_place(
    device: torch.device, dtype: torch.dtype, width: int, places: int, most: int
) -> None:
    slots = Slots.new(2 * places, places, width, dtype)
    hosts = [pinned(torch.empty(0, dtype=dtype, device=device))(plane.shape) for plane in slots.host[:2]]
    recall = partial(run, decode_attend_recall.decode_attend_recall, device, hosts)
    whole = partial(run, decode_attend_pages.decode_attend_pages, device, [])
    for rows, running in random_steps(slots, 300, most, seed=places):
        slots.step(rows, running, recall, whole, partial(prefetched, device, hosts), partial(promised, device))
    assert slots.recalls > 300
    assert slots.hits > 100


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
    for resident, prefetch in ((0, False), (9, False), (9, True)):
        places = {"kv_resident": resident, "kv_prefetch": prefetch}
        engine = build(tiny.config(folder, device=str(device), graphs=graphs, **PAGES, **places))
        tiny.enter(engine, tiny.request(tiny.prompt(250, 3), kv=replace(KV, budget=64)), slot=0)
        tiny.enter(engine, tiny.request(tiny.prompt(200)), slot=1)
        tokens, logits = tiny.decode(engine, 40, slot=1)
        found.append((tokens, logits.cpu()))
        if resident:
            (body,) = engine.batch.bodies
            assert isinstance(body, RecallBody)
            assert all(plane.is_pinned() for plane in body.planes)
            fetched = engine.fetched(1)
            assert fetched is not None
            assert prefetch == (fetched.prefetch_hits > 0)
            packet = engine.export(1)
            want = tiny.decode(engine, 20, slot=1)
            engine.restore(packet, 2)
            assert tiny.decode(engine, 20, slot=2)[0] == want[0]
    for other in found[1:]:
        assert found[0][0] == other[0]
        assert torch.equal(found[0][1], other[1])
