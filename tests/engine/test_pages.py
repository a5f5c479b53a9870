"""Slots that keep every token and read some pages: what they read, and how."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ringkv.base.cache_spec import PageFormat, SlotFormat
from ringkv.base.errors import BudgetTooSmall, InvalidRequest, PromptTooLong
from ringkv.base.events import Finished, PageUsage
from ringkv.base.kv import KVChoice
from ringkv.base.page_counts import EVERY_PAGE
from ringkv.base.request import Request
from ringkv.base.selectors import SnapKV
from ringkv.engine import functions
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.kernels import pages
from ringkv.kernels.attended import Attended
from ringkv.kernels.slots import Pages, Rows, Slots
from ringkv.scheduler.loop import Loop
from tests.engine import tiny
from tests.engine.reference import use_reference
from tests.kernels.test_read_ahead import drop

PAGE, CAPACITY = 16, 320
PAGED = SlotFormat(reading=PageFormat(PAGE))
ON_DISK = SlotFormat(reading=PageFormat(PAGE, on_disk=True))
KV = KVChoice("arkvale", budget=96, sinks=4, recent=16, select=SnapKV(window=8))


@pytest.fixture(scope="module")
def paged(llama_dir: Path) -> LocalEngine:
    return build(tiny.config(llama_dir, kv=KV, capacity=CAPACITY, slot_format=PAGED))


@pytest.fixture(scope="module")
def whole(llama_dir: Path) -> LocalEngine:
    return build(tiny.config(llama_dir, kv=KVChoice("full", select=SnapKV(window=8)), capacity=CAPACITY))


def decoded(engine: LocalEngine, kv: KVChoice, slot: int = 0, n: int = 200) -> torch.Tensor:
    tiny.enter(engine, tiny.request(tiny.prompt(n), kv=kv), slot)
    return tiny.decode(engine, 40, slot, forced=tiny.prompt(40, 9))[1]


def index(engine: LocalEngine) -> Pages:
    """Return what the slots have beside their planes: digests, pins and counts."""
    found = engine.batch.bodies[0].pages
    assert found is not None
    return found


def test_a_budget_of_all_pages_and_other_policies_have_the_bits_of_slots_without_pages(
    paged: LocalEngine, whole: LocalEngine
) -> None:
    full = replace(KV, policy="full", budget=None)
    want = decoded(whole, full)
    assert torch.equal(decoded(paged, replace(KV, budget=None)), want)
    assert torch.equal(decoded(paged, replace(KV, budget=240)), want)
    assert torch.equal(decoded(paged, full, slot=2), want)
    narrow = tiny.choice("snapstream")
    assert torch.equal(decoded(paged, narrow), decoded(whole, narrow))


def test_a_smaller_budget_reads_less(paged: LocalEngine, whole: LocalEngine) -> None:
    """So that the test above can fail."""
    off = decoded(paged, KV) - decoded(whole, replace(KV, policy="full", budget=None))
    assert not off[0].any()  # the prompt's own logits
    assert off[1:].abs().max() > 1e-3


def test_counts_are_whole_pages_of_the_choice(paged: LocalEngine) -> None:
    tiny.enter(paged, tiny.request(tiny.prompt(200)), slot=1)
    tiny.enter(paged, tiny.request(tiny.prompt(200), kv=tiny.choice("streaming")), slot=2)
    counts = index(paged).counts
    assert counts[:, 1].tolist() == [[96 // PAGE, 1, 1 + 1]] * 3
    assert counts[:, 2, 0].tolist() == [EVERY_PAGE] * 3


def test_the_pages_of_an_answer_are_those_that_its_steps_select(
    paged: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for slot in range(paged.limits.slots):
        paged.release(slot)
    selections: list[torch.Tensor] = []
    select = pages.selected

    def spy(*arguments: Any) -> torch.Tensor:
        selections.append(select(*arguments))
        return selections[-1]

    monkeypatch.setattr(pages, "selected", spy)
    use_reference(monkeypatch)
    usage = ended(paged, tiny.request(tiny.prompt(100), max_tokens=40, ignore_eos=True)).usage.kv
    layers, heads, fed = 3, 2, 39
    assert len(selections) == layers * fed
    read = sum(int(one.sum()) for one in selections) // (layers * heads)
    held = [-(-length // PAGE) for length in range(101, 101 + fed)]
    assert usage.pages == PageUsage(held[-1], held[-1], step=96 // PAGE, read=read, skipped=sum(held) - read)
    assert 0 < read < sum(held)
    assert usage.heads is None


def ended(engine: LocalEngine, one: Request) -> Finished:
    loop = Loop(engine)
    events = loop.submit(one)
    while not loop.idle:
        events += loop.step()
    return next(event for event in events if isinstance(event, Finished))


def pages_by_loops(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: Slots, rows: Rows, scale: float
) -> Attended:
    """Read 4 pages: the first, the last 2 and that to which a query may pay most, by the digest of its keys."""
    keys, values = slots.planes
    out, lse = torch.zeros_like(q), torch.full(q.shape[:3], float("-inf"))
    for row, (at, new, count) in enumerate(zip(*(numbers.tolist() for numbers in rows), strict=True)):
        if not count:
            continue
        keys[at, :, new], values[at, :, new] = k[row], v[row]
        pages = [range(first, min(first + PAGE, count)) for first in range(0, count, PAGE)]
        for head in range(q.shape[1]):
            own = keys[at, head]
            digests = [means_by_loops(own[page]) for page in pages[:-2]]
            promised = [
                [torch.maximum(query * upper, query * lower).sum() * scale for upper, lower in digests]
                for query in q[row, head]
            ]
            shares = torch.tensor(promised).softmax(-1).amax(0).tolist()
            best = pages[max(range(1, len(shares)), key=shares.__getitem__)]
            read = [entry for page in (pages[0], best, *pages[-2:]) for entry in page]
            scores = q[row, head] @ own[read].T * scale
            lse[row, head] = scores.logsumexp(-1)
            out[row, head] = scores.softmax(-1) @ values[at, head, read]
    return Attended(out, lse)


def means_by_loops(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the digest of a page's keys [PAGE, D]: the middle, plus and minus the mean distance from it."""
    middle = (keys.amax(0) + keys.amin(0)) / 2
    radius = torch.stack([(key - middle).abs() for key in keys]).mean(0)
    return middle + radius, middle - radius


def test_each_head_reads_the_page_that_digests_of_its_keys_select(
    llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget of 4 pages leaves one between the first and the newest, and none is pinned."""
    engine = build(tiny.config(llama_dir, kv=KV, capacity=CAPACITY, slot_format=PAGED))
    found = decoded(engine, replace(KV, budget=4 * PAGE))
    monkeypatch.setattr(functions, "decode_attend", pages_by_loops)
    want = decoded(engine, replace(KV, budget=4 * PAGE))
    torch.testing.assert_close(found, want, atol=1e-4, rtol=1e-4)


def test_a_compressed_prompt_has_the_bits_of_slots_without_pages(paged: LocalEngine, whole: LocalEngine) -> None:
    """Its slot does not wrap, and is read whole."""
    kv = KVChoice("snapkv", budget=160, sinks=4, recent=48, select=SnapKV(window=8))
    assert torch.equal(decoded(paged, kv), decoded(whole, kv))


def test_half_of_the_pages_between_are_pinned_by_the_votes_of_the_prompts_end(paged: LocalEngine) -> None:
    """Votes by loops over the last queries and the slot's keys."""
    n = 250
    one = tiny.request(tiny.prompt(n), kv=replace(KV, budget=160, protect=((40, 44),)))
    tiny.enter(paged, one, slot=1)
    body = paged.batch.bodies[0]
    read = paged.lanes.view(0, 0, 8)
    between = range(1, -(-n // PAGE) - 2)
    for layer, q in enumerate(read.q):
        for head in range(2):
            keys = body.planes[0][layer, 1, head, :n]
            votes = torch.zeros(n)
            for at in range(8):
                seen = n - 8 + at + 1
                votes[:seen] += (q[head, :, at] @ keys[:seen].T * read.scale).softmax(-1).mean(0)
            pooled = [float(votes[max(0, at - 15) : at + 16].max()) for at in range(n)]
            pages = [sum(pooled[page * PAGE : (page + 1) * PAGE]) for page in range(-(-n // PAGE))]
            pages[40 // PAGE] = float("inf")  # it is protected
            best = sorted(between, key=pages.__getitem__, reverse=True)[: (160 // PAGE - 1 - 2) // 2]
            pins = index(paged).pins[layer, 1, head]
            assert (pins > 0).nonzero()[:, 0].tolist() == sorted(best)
            assert (pins[pins < 0] == float("-inf")).all()
    paged.release(1)


def test_a_slot_takes_two_vectors_more_for_each_page_and_head(paged: LocalEngine, whole: LocalEngine) -> None:
    layers, heads, width, item = 3, 2, 32, 4
    pages = CAPACITY // PAGE * layers * heads
    assert paged.limits.slot_bytes == whole.limits.slot_bytes + pages * (2 * width * item + 4) + 12 * layers


def test_a_prompt_clears_what_was_written_and_touches_nothing_else(paged: LocalEngine) -> None:
    body = paged.batch.bodies[0]
    with torch.inference_mode():
        for tensor in (*body.planes, index(paged).digests):
            tensor[:, 1] = 0
    decoded(paged, KV, slot=1, n=80)  # and 40 tokens: 7 whole pages and a part of the eighth
    with torch.inference_mode():
        for plane in body.planes:
            plane[:, 1, :, 9 * PAGE :] = 7
    tiny.enter(paged, tiny.request(tiny.prompt(20), kv=KV), slot=1)
    for plane in body.planes:
        assert plane[:, 1, :, :20].any(-1).all()
        assert not plane[:, 1, :, 20 : 8 * PAGE].any()
        assert (plane[:, 1, :, 9 * PAGE :] == 7).all()
    assert not index(paged).digests[:, 1, :, 1:].any()


def test_nan_in_one_slot_fails_it_alone(paged: LocalEngine) -> None:
    want = decoded(paged, KV, slot=1)
    tiny.enter(paged, tiny.request(tiny.prompt(200, 1)), slot=0)
    tiny.enter(paged, tiny.request(tiny.prompt(200), kv=KV), slot=1)
    with torch.inference_mode():
        for tensor in (*paged.batch.bodies[0].planes, index(paged).digests):
            tensor[:, 0] = float("nan")
    assert torch.equal(tiny.decode(paged, 40, 1, forced=tiny.prompt(40, 9))[1], want)
    assert paged.batch.logits[0].isnan().all()


def test_the_next_turn_continues_from_every_token(paged: LocalEngine, llama_dir: Path) -> None:
    engine = build(tiny.config(llama_dir, kv=KV, capacity=CAPACITY, slot_format=PAGED, store_bytes=10**7))
    first = tiny.request(tiny.prompt(150), "one", replace(KV, turns="continue"), max_tokens=4, ignore_eos=True)
    tokens = tiny.serve(engine, first)["one"]
    second = tiny.request([*tiny.prompt(150), *tokens, *tiny.prompt(30, 5)], "two", replace(KV, turns="continue"))
    cached = engine.begin(second, 0)
    assert (cached.tokens, cached.gap) == (150 + len(tokens) - 1, 0)


def test_slots_on_disk_have_the_bits_of_slots_in_memory_and_leave_no_file(
    llama_dir: Path, paged: LocalEngine, tmp_path: Path
) -> None:
    filed = build(tiny.config(llama_dir, kv=KV, capacity=CAPACITY, slot_format=ON_DISK, kv_tier=tmp_path))
    assert torch.equal(decoded(filed, KV, slot=1), decoded(paged, KV, slot=1))
    layers, heads, width, item = 3, 2, 32, 4
    assert filed.limits.slot_bytes == CAPACITY // PAGE * layers * heads * (2 * width * item + 4) + 12 * layers
    assert (filed.limits.tier, filed.limits.tier_bytes) == (str(tmp_path), CAPACITY * layers * heads * 2 * width * item)
    assert list(tmp_path.iterdir()) == []
    with open("/proc/self/maps") as maps:
        assert sum(str(tmp_path) in line for line in maps) == 2  # keys and values


def test_pages_that_steps_read_from_files_are_counted_for_each_request(llama_dir: Path, tmp_path: Path) -> None:
    filed = build(tiny.config(llama_dir, kv=KV, capacity=CAPACITY, slot_format=ON_DISK, kv_tier=tmp_path))
    usage = ended(filed, tiny.request(tiny.prompt(200), max_tokens=4, ignore_eos=True)).usage.kv
    assert usage.pages is not None
    assert (usage.pages.resident, usage.pages.recalled) == (0, 0)
    tiny.enter(filed, tiny.request(tiny.prompt(200), kv=KV), slot=1)
    drop(list(filed.batch.bodies[0].planes))
    filed.sample().read()
    filed.forward()
    assert 0 < (filed.recalled(1) or 0) <= KV.budget // PAGE
    assert filed.recalled(2) == 0
    filed.release(1)
    tiny.enter(filed, tiny.request(tiny.prompt(200), kv=KV), slot=1)
    assert filed.recalled(1) == 0


def test_a_disk_without_room_is_refused(llama_dir: Path) -> None:
    with pytest.raises(InvalidRequest, match="/dev/shm") as refused:
        build(tiny.config(llama_dir, kv=KV, capacity=2**33, slot_format=ON_DISK, kv_tier=Path("/dev/shm"), slots=1))
    assert refused.value.param == "kv_tier"


def test_a_tier_in_memory_is_warned_of(
    llama_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for kind, warnings in (("ext4", 0), ("tmpfs", 1)):
        monkeypatch.setattr("ringkv.cache.tier.file_system", lambda _, kind=kind: kind)
        build(tiny.config(llama_dir, kv=KV, capacity=CAPACITY, slot_format=ON_DISK, kv_tier=tmp_path))
        assert caplog.text.count("(tmpfs)") == warnings


def test_what_pages_cannot_do_is_refused(llama_dir: Path, paged: LocalEngine, whole: LocalEngine) -> None:
    with pytest.raises(InvalidRequest, match="no pages") as refused:
        whole.admit(tiny.request(tiny.prompt(50), kv=KV))
    assert refused.value.param == "kv_policy"
    with pytest.raises(PromptTooLong, match="256"):
        paged.admit(tiny.request(tiny.prompt(300), kv=KV))
    with pytest.raises(BudgetTooSmall):
        paged.admit(tiny.request(tiny.prompt(50), kv=replace(KV, budget=16)))
    with pytest.raises(InvalidRequest, match=r"zipcache .* arkvale") as refused:
        build(tiny.config(llama_dir, kv=KV, capacity=CAPACITY, slot_format=SlotFormat("zipcache", PageFormat(PAGE))))
    assert refused.value.param == "kv_format"
