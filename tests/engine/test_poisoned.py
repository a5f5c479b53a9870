"""NaN in caches: the request that meets it fails alone, and nothing of it reaches a later one."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from ringkv.base.cache_spec import SlotFormat
from ringkv.base.events import Event, Failed, Finished, Token
from ringkv.cache.body import Body
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.kernels.slots import flat
from ringkv.scheduler.loop import Loop
from tests.engine import tiny

NAN = float("nan")
KV = tiny.choice("snapstream", budget=40, recent=8)


@pytest.fixture(scope="module", params=[32, 24], ids=["kernels", "references"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model; the C++ kernels do not support the second width."""
    folder = tmp_path_factory.mktemp("llama")
    tiny.save(folder, "Llama", head_dim=request.param)
    return folder


def prompt(n: int, seed: int = 0) -> list[int]:
    return Random(seed).choices(range(3, 199), k=n)


@torch.inference_mode()
def poison(bodies: tuple[Body, ...], row: int | slice = slice(None)) -> None:
    """Write NaN to these rows, and to everything that is not a floating-point number its largest value."""
    for body in bodies:
        for plane in flat(body.slots):
            plane[:, row] = NAN if plane.is_floating_point() else torch.iinfo(plane.dtype).max


@torch.inference_mode()
def poison_all(engine: LocalEngine) -> None:
    """Write NaN to all slots and all of staging."""
    poison(engine.batch.bodies)
    poison(engine.lanes.staging.bodies)
    for queries in engine.lanes.staging.queries:
        queries.fill_(NAN)
    engine.batch.logits.fill_(NAN)
    for slot in range(engine.limits.slots):
        engine.release(slot)


def served(loop: Loop, *prompts: list[int], **sampling: Any) -> list[Event]:
    """Submit requests "0", "1" ... and return all their events."""
    asked = [tiny.request(tokens, str(n), kv=KV, **sampling) for n, tokens in enumerate(prompts)]
    events = [event for one in asked for event in loop.submit(one)]
    while not loop.idle:
        events += loop.step()
    return events


def tokens(events: list[Event], name: str) -> list[int]:
    return [event.token for event in events if isinstance(event, Token) and event.request_id == name]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "slot_format": SlotFormat("int8")},
        {"dtype": "bfloat16", "slot_format": SlotFormat("int4")},
        {"dtype": "bfloat16", "slot_format": SlotFormat("zipcache")},
        {"dtype": "bfloat16", "speculate": 3},
    ],
    ids=["float32", "bfloat16", "int8", "int4", "zipcache", "drafts"],
)
@pytest.mark.parametrize(
    "length", [5, pytest.param(37, marks=pytest.mark.slow), 120], ids=["short", "a slot's", "evicting"]
)
def test_a_request_in_memory_that_held_nan_is_answered_as_by_a_fresh_engine(
    folder: Path, settings: dict[str, Any], length: int
) -> None:
    fresh, poisoned = (build(tiny.config(folder, **settings)) for _ in range(2))
    poison_all(poisoned)
    for engine in (fresh, poisoned):
        engine.begin(asked := tiny.request(prompt(length), kv=KV), 0)
        tiny.enter(engine, asked, slot=1)
    want, got = tiny.decode(fresh, 50, slot=1), tiny.decode(poisoned, 50, slot=1)  # the ring wraps
    assert got[0] == want[0]
    assert torch.equal(got[1], want[1])


def test_a_request_that_is_restored_into_memory_that_held_nan_continues(folder: Path) -> None:
    fresh, poisoned = (build(tiny.config(folder)) for _ in range(2))
    poison_all(poisoned)
    tiny.enter(fresh, tiny.request(prompt(5), kv=KV))
    poisoned.restore(fresh.export(0), 0)
    assert torch.equal(tiny.decode(poisoned, 30)[1], tiny.decode(fresh, 30)[1])


@pytest.mark.parametrize("speculate", [0, 3])
def test_a_request_whose_slot_turns_to_nan_fails_alone(folder: Path, speculate: int) -> None:
    engine = build(tiny.config(folder, dtype="bfloat16", speculate=speculate))
    prompts = [prompt(30, seed) for seed in range(3)]
    alone = [tokens(served(Loop(engine), one, max_tokens=40), "0") for one in prompts]

    loop, events = Loop(engine), []
    for n, one in enumerate(prompts):
        events += loop.submit(tiny.request(one, str(n), kv=KV, max_tokens=40))
    while loop.stats().running < 3 or len(tokens(events, "1")) < 5:
        events += loop.step()
    poison(engine.batch.bodies, row=1)
    while not loop.idle:
        events += loop.step()

    ends = {event.request_id: event for event in events if isinstance(event, Finished | Failed)}
    assert isinstance(ends["1"], Failed)
    assert "not finite" in ends["1"].message
    assert tokens(events, "1") == alone[1][: len(tokens(events, "1"))]
    for n in (0, 2):
        assert isinstance(ends[str(n)], Finished)
        assert tokens(events, str(n)) == alone[n]
    assert tokens(served(loop, *prompts, max_tokens=40), "1") == alone[1]
