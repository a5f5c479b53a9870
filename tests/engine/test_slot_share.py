"""Ranks that divide the slots of latent attention compute what one rank computes, and each has its own slots alone."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from ringkv.base.cache_spec import PlaneFormat, SlotFormat
from ringkv.base.config import EngineConfig
from ringkv.base.engine import chunks
from ringkv.base.kv import KVChoice
from ringkv.base.ranks import Rank
from ringkv.base.selectors import KeyDiff
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.engine.sizes import EngineSizes, Sizes
from ringkv.engine.slot_share import SlotShare
from ringkv.models.config import load_config
from ringkv.plan.engine_footprint import engine_footprint
from tests.engine import tiny
from tests.engine.rank_threads import Threads, on_ranks
from tests.engine.test_drafts import with_drafts
from tests.engine.test_engine import prompt
from tests.engine.test_ranks import MODELS
from tests.engine.test_turns import GOES_ON, STORE, take_turn
from tests.refusals import refusal

CHOICES: Mapping[str, KVChoice] = {
    "full": tiny.choice("full", budget=192),
    "streaming": tiny.choice("streaming", budget=24),
    "snapkv": tiny.choice("snapkv", budget=96, recent=32),
    "snapstream": tiny.choice("snapstream"),
    "keydiff": tiny.choice("snapstream", KeyDiff()),
}
STEPS = 24  # the rings of streaming and snapstream, of 20 and 16 entries, wrap


class Served(NamedTuple):
    kept: list[np.ndarray]  # of each request and layer, [H, live]
    tokens: list[list[int]]  # of each step, by slot
    logits: Tensor  # [steps, requests, V]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return tiny.save_all(tmp_path_factory, {name: MODELS[name] for name in ("deepseek", "deepseek-v2", "llama")})


def divided(folder: Path, slots: int, **changes: object) -> EngineConfig:
    usual = {"threads": 1, "capacity": 192, "chunk": 64, "slots": slots, "attention_parallel": "slots"}
    return tiny.config(folder, **(usual | changes))


def on_one_rank(config: EngineConfig) -> LocalEngine:
    return build(replace(config, attention_parallel="heads"))


def served(engine: LocalEngine) -> Served:
    """Decode a request of each policy, with prompts of their own, in slots far from each other."""
    slots, kept = [5 * at % engine.limits.slots for at in range(len(CHOICES))], []
    for at, (slot, choice) in enumerate(zip(slots, CHOICES.values(), strict=True)):
        tiny.enter(engine, tiny.request(prompt(130 - at, at), kv=choice), slot)
        kept += engine.kept(0, choice)
    logits, tokens = [], []
    for _ in range(STEPS):
        logits.append(engine.batch.logits[slots].clone())
        runs = engine.sample().read()
        tokens.append([runs[slot][0].token for slot in slots])
        engine.forward()
    return Served(kept, tokens, torch.stack(logits))


def check(folder: Path, count: int, slots: int, tolerance: float = 1e-5, **changes: object) -> None:
    """Compare each of so many ranks with one that has the whole model and all slots."""
    config = divided(folder, slots, **changes)
    alone = served(on_one_rank(config))
    for one in on_ranks(config, count, served):
        assert one.tokens == alone.tokens
        torch.testing.assert_close(one.logits, alone.logits, rtol=tolerance, atol=tolerance)
        assert all((kept == whole).all() for kept, whole in zip(one.kept, alone.kept, strict=True))


@pytest.mark.parametrize(
    ("name", "count", "slots"),
    [
        *[("deepseek", 2, 6), ("deepseek-v2", 4, 8)],
        *(pytest.param("deepseek", count, max(8, count), marks=pytest.mark.slow) for count in (4, 8, 16)),
    ],
)
def test_every_policy_is_that_of_one_rank(name: str, count: int, slots: int, folders: dict[str, Path]) -> None:
    check(folders[name], count, slots)


def test_encoded_slots_are_divided_too(folders: dict[str, Path]) -> None:
    """Sums in another order round some elements to the next of 255 levels."""
    check(folders["deepseek"], 2, 6, tolerance=0.01, slot_format=SlotFormat("int8"))


@pytest.fixture
def any_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let passes and steps have any number of rows, as those of our operators have."""

    def of(config: EngineConfig, _: object) -> EngineSizes:
        steps = Sizes(unit=config.slot_ranks)
        return EngineSizes(Sizes(), steps, replace(steps, most=0), Sizes(), rides=True)

    monkeypatch.setattr(EngineSizes, "of", of)


@pytest.mark.usefixtures("any_rows")
@pytest.mark.parametrize("count", [2, 3])
def test_a_step_may_have_fewer_rows_than_there_are_slots(count: int, folders: dict[str, Path]) -> None:
    """Three ranks have 5, 5 and 6 of 16 heads, and 2, 2 and 1 of 5 requests."""
    check(folders["deepseek"], count, 12)


@pytest.mark.usefixtures("any_rows")
def test_slots_ride_in_passes_whose_chunks_are_expanded_or_absorbed(folders: dict[str, Path]) -> None:
    """Of three slots that are fed two are on one rank. A chunk of 200 tokens is expanded, one of 50 absorbed."""
    config = divided(folders["deepseek"], 6, chunk=200)

    def ridden(engine: LocalEngine) -> tuple[list[int], Tensor]:
        assert engine.limits.rides
        for slot in (0, 1, 5):
            tiny.enter(engine, tiny.request(prompt(100, slot)), slot)
        late = tiny.request(prompt(250))
        engine.begin(late, 0)
        for chunk in chunks(late, 0, 0, 200):
            engine.sample()
            engine.prefill([chunk], feed=True)
        engine.insert(0, 3, late)
        tokens, _ = tiny.decode(engine, 20, slot=3)
        return tokens, engine.batch.logits[[0, 1, 3, 5]]

    tokens, logits = ridden(on_one_rank(config))
    for mine, found in on_ranks(config, 2, ridden):
        assert mine == tokens
        torch.testing.assert_close(found, logits, rtol=1e-5, atol=1e-5)


def _own_rows_alone(self: Threads, x: Tensor, widths: list[int], own: int) -> Tensor:
    return x.repeat_interleave(len(widths), 0).split(widths, 1)[self.index]


def _rows_of_another(self: Threads, x: Tensor, widths: list[int], own: int) -> Tensor:
    return torch.stack(self._exchanged(x)[::-1], 1).flatten(0, 1).split(widths, 1)[self.index]


def _own_heads_alone(self: Threads, x: Tensor, widths: list[int]) -> Tensor:
    return torch.cat([x] * len(widths), 1)[self.index :: len(widths)]


def _heads_of_another(self: Threads, x: Tensor, widths: list[int]) -> Tensor:
    return torch.cat(self._exchanged(x)[::-1], 1)[self.index :: len(widths)]


@pytest.mark.slow  # builds many engines
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("rows_to_columns", _own_rows_alone),
        ("rows_to_columns", _rows_of_another),
        ("columns_to_rows", _own_heads_alone),
        ("columns_to_rows", _heads_of_another),
    ],
)
def test_an_exchange_that_is_left_out_or_swapped_is_noticed(
    name: str, wrong: Callable[..., Tensor], folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Threads, name, wrong)
    with pytest.raises(AssertionError):
        check(folders["deepseek"], 2, 6)


@pytest.mark.parametrize("slot", [2, 3])
def test_drafts_in_a_slot_of_either_rank_do_not_change_the_tokens(slot: int, folders: dict[str, Path]) -> None:
    config, asked = divided(folders["deepseek"], 4), tiny.request(prompt(90), kv=CHOICES["snapstream"])
    alone = on_one_rank(config)
    tiny.enter(alone, asked)
    known, _ = tiny.decode(alone, 40)
    drafted = partial(with_drafts, request=asked, known=known, right=0.6, slot=slot)
    for tokens, passes in on_ranks(replace(config, speculate=3), 2, drafted):
        assert tokens[:40] == known
        assert passes < 40


@pytest.mark.parametrize("format", ["plain", "int8", "int4"])
def test_a_conversation_continues_on_every_rank(folders: dict[str, Path], format: PlaneFormat) -> None:
    changes = {"kv": GOES_ON, "chunk": 16, "store_bytes": STORE, "slot_format": SlotFormat(format)}
    config = divided(folders["deepseek"], 4, **changes)

    def turns(engine: LocalEngine) -> list[tuple[int, list[int]]]:
        first = tiny.request(prompt(150))
        known, answer = take_turn(engine, first, 10)
        second = tiny.request([*first.tokens, *answer, *prompt(30, 1)])
        return [(known, answer), take_turn(engine, second, 10)]

    alone = turns(on_one_rank(config))
    assert alone[1][0] > 150
    assert on_ranks(config, 2, turns) == [alone] * 2


def test_each_rank_has_the_bytes_of_its_own_slots_as_planned(folders: dict[str, Path]) -> None:
    config = divided(folders["deepseek"], 12)
    alone = on_one_rank(config).limits
    for limits in on_ranks(config, 4, lambda engine: engine.limits):
        assert (limits.slots, limits.slot_bytes, limits.slots_bytes) == (12, alone.slot_bytes, 3 * alone.slot_bytes)
        assert (limits.staging_bytes, limits.store_bytes) == (limits.held_bytes - limits.slots_bytes, 0)
    planned = engine_footprint(load_config(folders["deepseek"]), replace(config, rank=Rank(0, 4)))
    assert planned.held(12) - planned.held(0) == 4 * limits.slots_bytes == alone.slots_bytes


def test_a_model_without_latents_is_refused(folders: dict[str, Path]) -> None:
    with refusal("attention_parallel", "latent attention"):
        build(divided(folders["llama"], 4, rank=Rank(0, 2), exchange="network"))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_slot_is_on_one_rank_and_a_step_has_as_many_rows_of_each(ranks: int) -> None:
    shares, running = [SlotShare(Rank(index, ranks)) for index in range(ranks)], [0, 3, 4, 5, 9]
    size = shares[0].needed(running)
    assert size == {1: 5, 2: 6, 3: 9}[ranks]
    rows = torch.tensor(shares[0].in_turn([*running, *({*range(12)} - {*running})], size))
    assert {*running} <= {*rows.tolist()}
    assert len({*rows.tolist()}) == size
    for share in shares:
        own = [slot for slot in rows.tolist() if share.place(slot) is not None]
        assert share.own(rows).tolist() == own
        assert share.own_places(rows).tolist() == [share.place(slot) for slot in own]
        places = [-1 if (place := share.place(slot)) is None else place for slot in rows.tolist()]
        assert share.places(rows).tolist() == places
