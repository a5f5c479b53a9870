"""TriAttention in an engine: in transformers' attention under masks, beside other requests, and without eviction."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ringkv.base.errors import BadCache, InvalidRequest
from ringkv.base.request import Request
from ringkv.cache.calibrated_body import CalibratedBody
from ringkv.engine.build import build
from ringkv.engine.calibrate import calibrate
from ringkv.engine.engine import LocalEngine
from ringkv.machine.paths import cache_dir
from ringkv.weights.query_statistics import path_of, read, write
from tests.engine import kept, tiny
from tests.engine.test_poisoned import poison_all
from tests.engine.test_watching import CAPACITY, HEADS, LAYERS, LEADS, REVIEW, decoded, served

KV = tiny.choice("triattention", review=REVIEW)


@pytest.fixture(scope="module")
def calibrated_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A model of its own, with statistics."""
    folder = tmp_path_factory.mktemp("calibrated")
    tiny.save(folder, "Llama", rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    path = path_of(folder, cache_dir())
    calibrate(build(tiny.config(folder)).lanes, [tiny.prompt(200, 5)], path, "random")
    yield folder
    path.unlink()


@pytest.fixture(scope="module")
def engine(calibrated_dir: Path) -> LocalEngine:
    return started(calibrated_dir)


def started(folder: Path, **changes: Any) -> LocalEngine:
    return build(tiny.config(folder, **{"kv": KV, **changes}))


def asked(n: int, name: str = "r", **changes: Any) -> Request:
    return tiny.request(tiny.prompt(n, n), name, replace(KV, **changes), max_tokens=90, ignore_eos=True)


def held(engine: LocalEngine, slot: int, live: int) -> list[list[set[int]]]:
    """Return the positions of the first entries of each layer and head."""
    (body,) = engine.batch.bodies
    assert isinstance(body, CalibratedBody)
    return [[set(row[:live].tolist()) for row in layer] for layer in body.positions[:, slot]]


def left(engine: LocalEngine, slot: int, seen: int) -> list[list[set[int]]]:
    """Return what `held` does, right after a review. The last entries hold tokens that came after a layer's turn."""
    chosen = (held(engine, slot, CAPACITY - REVIEW - lead)[layer] for layer, lead in enumerate(LEADS))
    return [[row | {*range(seen - lead, seen)} for row in rows] for rows, lead in zip(chosen, LEADS, strict=True)]


@pytest.mark.parametrize("n", [30, 45, 100])
def test_logits_are_transformers_with_a_mask_for_each_head_that_hides_what_reviews_evicted(
    engine: LocalEngine, calibrated_dir: Path, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = n + 90
    tokens = tiny.prompt(total)
    tiny.enter(engine, tiny.request(tokens[:n], kv=KV), slot=1)
    plan = engine.compress(0, KV)[0]
    seen = torch.ones(total, total, dtype=torch.bool).tril().expand(LAYERS, HEADS, -1, -1).clone()
    rows, logits, evicted = held(engine, 1, plan.live(n)), [], 0
    for at in range(n, total):
        logits.append(engine.batch.logits[1].clone())
        engine.sample({1: tokens[at]})
        engine.forward()
        if plan.is_due(at) and plan.live(at) == CAPACITY:
            now = left(engine, 1, at)
            assert all(new < old for layer in zip(now, rows, strict=True) for new, old in zip(*layer, strict=True))
            assert {len(row) for layer in now for row in layer} == {CAPACITY - REVIEW}
            rows, evicted = now, evicted + 1
        for layer, of_heads in enumerate(rows):
            for head, row in enumerate(of_heads):
                row.add(at)
                assert len(row) == plan.live(at + 1) <= CAPACITY
                seen[layer, head, at] = torch.zeros(total, dtype=torch.bool).index_fill_(0, torch.tensor([*row]), True)
    assert evicted == plan.wrap_count(total) >= 3
    assert len({frozenset(row) for of_heads in rows for row in of_heads}) > 1
    want = kept.logits(kept.model(calibrated_dir, "Llama", list(seen), monkeypatch), tokens)
    torch.testing.assert_close(torch.stack(logits), want[n - 1 : total - 1], atol=2e-5, rtol=2e-5)
    engine.release(1)


def test_an_answer_that_fits_has_the_bits_of_a_full_cache_and_the_next_token_does_not(
    engine: LocalEngine, calibrated_dir: Path
) -> None:
    whole = build(tiny.config(calibrated_dir, kv=tiny.choice("full"), capacity=128))
    full = decoded(whole, asked(30, policy="full", budget=128), 60)
    found = decoded(engine, asked(30), 60)
    fits = CAPACITY - 30 + 1  # the logits after the last token that fits
    assert torch.equal(found[:fits], full[:fits])
    assert not torch.equal(found[fits], full[fits])


def test_other_policies_have_the_bits_of_slots_without_positions(engine: LocalEngine, calibrated_dir: Path) -> None:
    usual = build(tiny.config(calibrated_dir))
    for policy in ("snapstream", "streaming"):
        one = asked(150, policy=policy)
        assert torch.equal(decoded(engine, one, 80), decoded(usual, one, 80))


def test_requests_get_the_same_tokens_alone_and_beside_others_and_count_their_reviews(engine: LocalEngine) -> None:
    requests = [
        asked(150, "a"),
        asked(33, "b", protect=((10, 20),)),
        asked(90, "c", review=8),
        asked(70, "d", policy="snapstream"),
        asked(31, "e", budget=50),
    ]
    together, ends = served(engine, *requests)
    for one in requests:
        assert served(engine, one)[0][one.id] == together[one.id]
    usage = ends["a"].usage.kv
    assert (usage.capacity, usage.kept, usage.ring_wraps) == (CAPACITY, CAPACITY - REVIEW, (90 - 1 - 1) // REVIEW)
    assert usage.evicted == 150 + 89 - CAPACITY + REVIEW - 89 % REVIEW


def test_what_is_kept_does_not_depend_on_chunks_slots_or_neighbours(calibrated_dir: Path, engine: LocalEngine) -> None:
    whole, found = started(calibrated_dir, chunk=128), []
    tiny.enter(engine, asked(60), slot=2)
    for one, slot in ((engine, 0), (whole, 1)):
        tiny.enter(one, asked(120), slot)
        tiny.decode(one, 81, slot, forced=tiny.prompt(81, 9))  # the last step came after a review
        found.append(left(one, slot, 200))
        one.release(slot)
    engine.release(2)
    assert found[0] == found[1]


def test_nothing_of_an_earlier_request_is_read(engine: LocalEngine) -> None:
    want = decoded(engine, asked(150), 60)
    poison_all(engine)
    (body,) = engine.batch.bodies
    assert isinstance(body, CalibratedBody)
    with torch.inference_mode():
        body.positions.fill_(torch.iinfo(torch.int32).max)
    assert torch.equal(decoded(engine, asked(150), 60), want)


def test_sinks_recent_and_protected_tokens_stay_in_every_head(engine: LocalEngine) -> None:
    tiny.enter(engine, asked(100, protect=((50, 60),)), slot=1)
    tiny.decode(engine, 81, slot=1)
    fixed = {*range(4), *range(50, 60), *range(180 - 16, 180)}
    for row in (row for layer in left(engine, 1, 180) for row in layer):
        assert fixed <= row
    engine.release(1)


def test_a_slot_keeps_positions_and_no_queries(engine: LocalEngine, calibrated_dir: Path) -> None:
    usual = build(tiny.config(calibrated_dir))
    assert engine.limits.slot_bytes == usual.limits.slot_bytes + LAYERS * HEADS * CAPACITY * 4
    assert engine.limits.slot_bytes == sum(group.in_slots.slot_bytes(CAPACITY, 4) for group in engine.lanes.groups)


def test_statistics_decide_what_is_kept(calibrated_dir: Path, engine: LocalEngine) -> None:
    """So that the tests above can fail."""
    path, found = path_of(calibrated_dir, cache_dir()), []
    statistics = read(path)
    assert statistics is not None
    opposite = {layer: one._replace(queries=-one.queries) for layer, one in statistics.layers.items()}
    try:
        write(path, replace(statistics, layers=opposite))
        other = started(calibrated_dir)
    finally:
        write(path, statistics)
    for one in (engine, other):
        tiny.enter(one, asked(100), slot=1)
        tiny.decode(one, 81, slot=1, forced=tiny.prompt(81, 9))
        found.append(left(one, 1, 180))
        one.release(1)
    assert found[0] != found[1]


def test_what_it_cannot_do_is_refused(engine: LocalEngine, calibrated_dir: Path, tmp_path: Path) -> None:
    def refused(match: str, **changes: Any) -> None:
        with pytest.raises(InvalidRequest, match=match):
            started(calibrated_dir, **changes)

    usual = build(tiny.config(calibrated_dir))
    with pytest.raises(InvalidRequest, match="kv_policy is triattention, and the engine was started with another"):
        usual.admit(asked(50))
    with pytest.raises(InvalidRequest, match="slots keep no queries; start it with kv_policy h2o"):
        engine.admit(asked(50, policy="h2o"))
    with pytest.raises(InvalidRequest, match="kv_turns continue is not implemented for kv_policy triattention"):
        engine.admit(asked(50, turns="continue"))
    engine.admit(asked(50, review=30))  # no queries are kept, so a review may have more tokens than the default
    refused("not implemented for kv_format int8; choose plain", dtype="bfloat16", kv_format="int8")
    refused("kv_turns continue is not implemented for kv_policy triattention", kv=replace(KV, turns="continue"))
    refused("speculate 3 is not implemented for policies that review slots", speculate=3)
    refused("keep as much in each head; leave kv_heads out", kv=replace(KV, heads="adaptive"))
    tiny.save(tmp_path, "Llama")
    with pytest.raises(InvalidRequest, match=f"there are none; make them once with `ringkv calibrate {tmp_path}`"):
        started(tmp_path)


@pytest.mark.parametrize(
    ("kind", "changes", "match"),
    [
        ("HunYuanDenseV1", {}, "queries that are normalised after rotation"),
        ("Mistral", {"sliding_window": 16}, "layers all have a sliding window"),
    ],
)
def test_models_that_it_does_not_suit_are_refused(kind: str, changes: Any, match: str, tmp_path: Path) -> None:
    tiny.save(tmp_path, kind, **changes)
    with pytest.raises(InvalidRequest, match=match):
        started(tmp_path)


def test_statistics_of_another_model_are_refused(calibrated_dir: Path, tmp_path: Path) -> None:
    tiny.save(tmp_path, "Llama", num_attention_heads=4)
    path = path_of(tmp_path, cache_dir())
    shutil.copyfile(path_of(calibrated_dir, cache_dir()), path)
    try:
        with pytest.raises(BadCache, match="is of another model; delete it, and run `ringkv calibrate` again"):
            started(tmp_path)
        path.write_bytes(b"not safetensors")
        with pytest.raises(BadCache, match=r"cannot be read .*; delete it, and run `ringkv calibrate` again"):
            started(tmp_path)
    finally:
        path.unlink()
