"""Slots whose pages are recalled, on the CPU: the host's memory is the same memory, and the reference runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ringkv.base.cache_spec import PageFormat, SlotFormat
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import SnapKV
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.kernels import recall
from ringkv.kernels.slots import Residents, Rows
from tests.engine import tiny
from tests.engine.reference import use_reference
from tests.engine.test_pages import CAPACITY, KV, PAGE, PAGED, decoded, ended, index
from tests.engine.test_poisoned import poison_all
from tests.refusals import refusal

RESIDENT = 9
IN_HOST = SlotFormat(reading=PageFormat(PAGE, resident=RESIDENT))
SHORT = KVChoice("snapstream", budget=96, sinks=4, recent=16, select=SnapKV(window=8))


@pytest.fixture(autouse=True)
def references(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the references, whose bits are equal."""
    use_reference(monkeypatch)


@pytest.fixture(scope="module")
def paged(llama_dir: Path) -> LocalEngine:
    return built(llama_dir, PAGED)


@pytest.fixture(scope="module")
def recalling(llama_dir: Path) -> LocalEngine:
    return built(llama_dir, IN_HOST)


def built(folder: Path, slots: SlotFormat, **changes: Any) -> LocalEngine:
    return build(tiny.config(folder, kv=KV, capacity=CAPACITY, slot_format=slots, **changes))


def residents(engine: LocalEngine) -> Residents:
    found = index(engine).residents
    assert found is not None
    return found


@pytest.mark.parametrize("kv", [KV, replace(KV, budget=RESIDENT * PAGE), SHORT])
def test_a_request_has_the_bits_of_slots_with_all_pages(
    paged: LocalEngine, recalling: LocalEngine, kv: KVChoice
) -> None:
    """The last one's ring overwrites its pages, all of which are on the device."""
    assert torch.equal(decoded(recalling, kv), decoded(paged, kv))


def test_a_smaller_budget_gives_other_bits(recalling: LocalEngine) -> None:
    """So that the test above can fail."""
    assert (decoded(recalling, KV) - decoded(recalling, replace(KV, budget=RESIDENT * PAGE))).abs().max() > 1e-3


def test_a_request_gives_the_same_bits_alone_and_beside_others(recalling: LocalEngine) -> None:
    alone = decoded(recalling, KV, slot=1)
    recalling.release(1)
    tiny.enter(recalling, tiny.request(tiny.prompt(250, 3), kv=replace(KV, budget=64)), slot=0)
    tiny.enter(recalling, tiny.request(tiny.prompt(33, 4), kv=SHORT), slot=2)
    assert torch.equal(decoded(recalling, KV, slot=1), alone)


def test_nothing_of_an_earlier_request_is_read(recalling: LocalEngine) -> None:
    want = decoded(recalling, KV, slot=1)
    poison_all(recalling)
    assert torch.equal(decoded(recalling, KV, slot=1), want)


def test_the_host_has_every_entry_and_the_maps_are_inverse(paged: LocalEngine, recalling: LocalEngine) -> None:
    decoded(recalling, KV, slot=1)
    decoded(paged, KV, slot=1)
    live, own = 240, residents(recalling)
    for one, other in zip(recalling.batch.bodies[0].planes, paged.batch.bodies[0].planes, strict=True):
        assert torch.equal(one[:, 1, :, :live], other[:, 1, :, :live])
    digests = (index(engine).digests[:, 1, :, : live // PAGE] for engine in (recalling, paged))
    assert torch.equal(*digests)
    for place_of, page_in in zip(*(one[:, 1].flatten(0, 1) for one in (own.place_of, own.page_in)), strict=True):
        held = {page: place for place, page in enumerate(page_in.tolist())}
        assert held == {page: place for page, place in enumerate(place_of.tolist()) if place >= 0}
        assert {0, *range(live // PAGE - 2, live // PAGE)} <= {*held}


def test_usage_has_the_pages_that_steps_copied(recalling: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    take_places, copied = recall._take_places, 0

    def spy(seen: Tensor, share: Tensor, hosts: Any, places: Residents, rows: Rows, page: int) -> None:
        nonlocal copied
        wanted = seen & (places.place_of[rows.slot.long()] < 0)
        copied += int((wanted & (torch.arange(seen.shape[2]) * page < rows.live[:, None, None] - 1)).sum())
        take_places(seen, share, hosts, places, rows, page)

    for slot in range(recalling.limits.slots):
        recalling.release(slot)
    monkeypatch.setattr(recall, "_take_places", spy)
    usage = ended(recalling, tiny.request(tiny.prompt(200), max_tokens=40, ignore_eos=True)).usage.kv
    layers, heads = 3, 2
    assert usage.pages is not None
    assert usage.pages.recalled == round(copied / (layers * heads)) > KV.budget // PAGE
    assert usage.pages.resident == RESIDENT < usage.pages.held


def test_a_slot_moves_to_an_engine_with_all_pages_on_the_device_and_back(
    paged: LocalEngine, recalling: LocalEngine
) -> None:
    tiny.enter(recalling, tiny.request(tiny.prompt(207)), slot=2)
    tiny.decode(recalling, 20, slot=2)
    packet = recalling.export(2)
    want = tiny.decode(recalling, 40, slot=2)
    for engine in (paged, recalling):
        engine.restore(packet, 0)
        found = tiny.decode(engine, 40, slot=0)
        assert found[0] == want[0]
        assert torch.equal(found[1], want[1])


def test_the_next_turn_continues_from_every_token(paged: LocalEngine, llama_dir: Path) -> None:
    kv, tokens = replace(KV, turns="continue"), []
    for slots in (PAGED, IN_HOST):
        engine = built(llama_dir, slots, store_bytes=10**7)
        first = tiny.serve(engine, tiny.request(tiny.prompt(150), "one", kv, max_tokens=4, ignore_eos=True))["one"]
        second = tiny.request(
            [*tiny.prompt(150), *first, *tiny.prompt(30, 5)], "two", kv, max_tokens=9, ignore_eos=True
        )
        tokens.append(tiny.serve(engine, second)["two"])
    assert tokens[0] == tokens[1]


def test_the_maps_of_each_layer_begin_where_a_graph_reads_them_in_place(recalling: LocalEngine) -> None:
    _, _, *maps = residents(recalling)
    assert [one.dtype for one in maps] == [torch.int32] * 3
    assert {layer.data_ptr() % 16 for one in maps for layer in one} == {0}


def test_a_slot_takes_the_bytes_of_its_places_digests_and_maps(recalling: LocalEngine) -> None:
    layers, heads, width, item, pages = 3, 2, 32, 4, CAPACITY // PAGE
    places = RESIDENT * PAGE * 2 * width * item
    own = heads * (places + pages * (2 * width * item + 4) + 4 * (pages + RESIDENT + 1)) + 12
    assert recalling.limits.slot_bytes == layers * own
    assert recalling.model.with_slots(recalling.config.slot_format).groups[0].slot_bytes(CAPACITY, item) == layers * own
    assert (recalling.limits.tier, recalling.limits.tier_bytes) == (
        "memory",
        CAPACITY * layers * heads * 2 * width * item,
    )


def test_what_would_read_more_than_has_a_place_is_refused(recalling: LocalEngine, llama_dir: Path) -> None:
    for kv in (replace(KV, policy="full", budget=None), replace(KV, budget=160), replace(SHORT, budget=160)):
        with pytest.raises(InvalidRequest, match=" 144 ") as bad:
            recalling.admit(tiny.request(tiny.prompt(50), kv=kv))
        assert bad.value.param == "kv_budget"
    recalling.admit(tiny.request(tiny.prompt(50), kv=replace(KV, policy="full", budget=144)))
    with refusal("speculate", "kv_tier memory"):
        built(llama_dir, IN_HOST, speculate=3)
    with refusal("kv_format", "int8 .* kv_tier memory"):
        built(llama_dir, IN_HOST._replace(encoding="int8"))
