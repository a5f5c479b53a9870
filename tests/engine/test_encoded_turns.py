"""A conversation's next turn from encoded slots: it attends to what they decode to, and what stays keeps its bytes.

L layers, H key-value heads, m live entries, D elements of a vector.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ringkv.base.cache_spec import PlaneFormat, SlotFormat
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import SnapKV
from ringkv.cache.body import Body
from ringkv.cache.steps import finished
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.kernels.encoding import ENCODINGS
from tests.engine import tiny
from tests.engine.test_turns import GOES_ON, STORE, Reference, prompt, read, take_turn

SKIPS: Mapping[PlaneFormat, int] = {"int8": 0, "int4": 1}  # layers at each end that are plain
WIDTH = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.save(folder, "Llama")
    return folder


@pytest.fixture(scope="module")
def engines(folder: Path) -> Mapping[str, LocalEngine]:
    changes = {"store_bytes": STORE, "kv": GOES_ON}
    return {
        name: build(tiny.config(folder, slot_format=SlotFormat(name, skip=skip), **changes))
        for name, skip in SKIPS.items()
    }


def decoded(engine: LocalEngine, live: int) -> tuple[Tensor, Tensor]:
    """Keys and values [L, H, m, D] of slot 0, by the formula of each format."""
    keys, values = torch.zeros(2, 3, 2, live, WIDTH)
    for body in engine.batch.bodies:
        layers = list(body.group.layers)
        keys[layers], values[layers] = of_body(body, live)
    return keys, values


def of_body(body: Body, live: int) -> tuple[Tensor, Tensor]:
    planes = [plane[:, 0, :, :live] for plane in body.planes]
    if body.group.slots.encoding == "plain":
        keys, values = planes
        return keys, values
    encoding = ENCODINGS[body.group.slots.encoding]
    assert body.slots.centers is not None
    center, *first = body.slots.centers[:, 0].unflatten(-1, (-1, WIDTH)).unbind(2)
    keys = encoding.decode(*planes[:2])
    for at, exact in enumerate(first):
        keys[:, :, at] = torch.where(exact.isnan(), keys[:, :, at], exact)
    return keys + center[:, :, None], encoding.decode(*planes[2:])


def centers_of(engine: LocalEngine) -> list[Tensor]:
    """Return the centers [L, H, W] of slot 0 in each body that has some."""
    return [body.slots.centers[:, 0] for body in engine.batch.bodies if body.slots.centers is not None]


def in_order(engine: LocalEngine, seen: int) -> list[int]:
    """Return the live entries of slot 0 by age, the protected ones first."""
    _, (layout, *_) = engine.batch.owner(0)
    first = seen - (layout.live(seen) - min(layout.live(seen), layout.protected))
    return [*range(min(layout.live(seen), layout.protected)), *(layout.entry(p) for p in range(first, seen))]


@pytest.mark.parametrize("length", [30, 150])
@pytest.mark.parametrize("name", SKIPS)
def test_every_turn_attends_to_what_the_last_one_left(
    engines: Mapping[str, LocalEngine], folder: Path, name: str, length: int
) -> None:
    """Beside transformers, given the decoded slot as its cache and the true positions; then a third turn."""
    engine, tokens = engines[name], prompt(length)
    read(engine, tiny.request(tokens))
    for turn in range(2):
        asked = tiny.request(tokens)
        engine.insert(0, 0, asked)
        answer, _ = tiny.decode(engine, 9)
        tokens = [*tokens, *answer]
        order = in_order(engine, len(tokens))
        left = [plane[:, :, order] for plane in decoded(engine, len(order))]
        engine.leave(0, tuple(tokens))
        engine.release(0)
        seen, tokens = len(tokens), [*tokens, *prompt(20, turn + 1)]
        known, logits = read(engine, tiny.request(tokens))
        assert known == seen
        theirs = Reference(folder, left[0], left[1])
        torch.testing.assert_close(logits, theirs.read(tuple(tokens[known:]), known), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("policy", ["full", "streaming", "snapkv", "snapstream"])
@pytest.mark.parametrize("name", SKIPS)
def test_entries_that_stay_keep_their_bytes(engines: Mapping[str, LocalEngine], name: str, policy: str) -> None:
    engine = engines[name]
    kv = replace(GOES_ON, policy=policy)
    first = tiny.request(prompt(30), kv=kv)
    tiny.enter(engine, first)
    answer, _ = tiny.decode(engine, 9)
    order = in_order(engine, 39)
    before = [[plane[:, 0, :, order].clone() for plane in body.planes] for body in engine.batch.bodies]
    centers = [centers.clone() for centers in centers_of(engine)]
    engine.leave(0, (*first.tokens, *answer))
    engine.release(0)

    second = tiny.request([*first.tokens, *answer, *prompt(20 if policy == "full" else 60, 1)], kv=kv)
    read(engine, second)
    sources = finished(engine.lanes.select(0, kv)).sources
    engine.insert(0, 0, second)
    for body, source, planes in zip(engine.batch.bodies, sources, before, strict=True):
        stays, (layers, heads, n) = source < 39, source.shape
        assert 0 < stays.sum() <= layers * heads * n
        at = source.clamp(max=38)
        for plane, own in zip(body.planes, planes, strict=True):
            wanted = own[torch.arange(layers)[:, None, None], torch.arange(heads)[:, None], at]
            assert torch.equal(plane[:, 0, :, :n][stays], wanted[stays])
    now = centers_of(engine)
    for one, other in zip(centers, now, strict=True):
        compared = slice(WIDTH if policy == "snapkv" else None)  # which has no sinks
        torch.testing.assert_close(one[..., compared], other[..., compared], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_protected_beginning_keeps_its_bytes_through_all_turns(folder: Path, dtype: str) -> None:
    kv, skip = replace(GOES_ON, protect=((0, 12),)), {"slot_format": SlotFormat("int4", skip=1)}
    engine, tokens = build(tiny.config(folder, dtype=dtype, store_bytes=STORE, **skip)), prompt(150)
    body = next(body for body in engine.batch.bodies if body.group.slots.encoding == "int4")
    assert body.slots.centers is not None
    found = []
    for turn in range(4):
        known, answer = take_turn(engine, tiny.request(tokens, kv=kv), 30)
        assert turn == 0 or known > 100
        tokens = [*tokens, *answer][:240]
        found.append([plane[:, 0, :, :12].clone() for plane in (*body.planes, body.slots.centers[..., None, :])])
    assert all(torch.equal(*pair) for later in found[1:] for pair in zip(found[0][:4], later[:4], strict=True))
    assert all(torch.equal(found[0][4].nan_to_num(), later[4].nan_to_num()) for later in found[1:])


def test_an_answer_that_comes_back_changed_continues_from_the_entries_before_it(
    engines: Mapping[str, LocalEngine], folder: Path
) -> None:
    engine, first = engines["int4"], tiny.request(prompt(150, 7))
    tiny.enter(engine, first)
    answer, _ = tiny.decode(engine, 12)
    order = in_order(engine, 162)[:-5]
    keys, values = (plane[:, :, order] for plane in decoded(engine, 64))
    engine.leave(0, (*first.tokens, *answer))
    engine.release(0)
    told = tiny.request([*first.tokens, *answer[:7], (answer[7] + 1) % 190 + 3, *prompt(10, 1)])
    known, logits = read(engine, told)
    assert known == 157
    wanted = Reference(folder, keys, values).read(told.tokens[157:], 157)
    torch.testing.assert_close(logits, wanted, atol=2e-5, rtol=1e-4)


def test_a_conversation_takes_the_bytes_of_its_entries_and_is_encoded_again_if_it_was_dropped_meanwhile(
    folder: Path,
) -> None:
    """The store has room for 105 entries in int8, not for 65 plain ones."""
    plain, encoded = 64 * 12 * WIDTH * 4, 105 * 12 * (WIDTH + 4) + 6 * WIDTH * 4 * (1 + 4)
    kv = KVChoice(budget=128, recent=16, select=SnapKV(window=8), turns="continue")
    changes = {"kv": kv, "capacity": 128, "slot_format": SlotFormat("int8"), "store_bytes": plain}
    engine, first = build(tiny.config(folder, **changes)), tiny.request(prompt(100))
    _, answer = take_turn(engine, first, 5)
    pool = engine._turns._conversations._pool
    ((name, row),) = pool._rows.items()
    assert row.groups[-1].stop == encoded
    assert encoded < plain

    second = tiny.request([*first.tokens, *answer, *prompt(10, 1)])
    found = []
    for is_dropped in (False, True):
        assert read(engine, second)[0] == 105
        if is_dropped:
            pool.drop(name)
        engine.insert(0, 0, second)
        found.append([plane[:, 0].clone() for plane in engine.batch.bodies[0].planes])
        engine.release(0)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", SKIPS)
def test_a_window_of_encoded_entries_continues(name: PlaneFormat, tmp_path: Path) -> None:
    """Beside plain slots, as a window holds all that a token attends to."""
    tiny.save(tmp_path, "Mistral", sliding_window=16)
    logits = []
    formats: tuple[tuple[PlaneFormat, int], ...] = (("plain", 0), (name, SKIPS[name]))
    for format, skip in formats:
        changes = {"slot_format": SlotFormat(format, skip=skip), "store_bytes": STORE, "kv": GOES_ON}
        engine, first = build(tiny.config(tmp_path, **changes)), tiny.request(prompt(100))
        tiny.enter(engine, first)
        answer, _ = tiny.decode(engine, 30, forced=prompt(30, 3))
        engine.leave(0, (*first.tokens, *answer))
        engine.release(0)
        known, after = read(engine, tiny.request([*first.tokens, *answer, *prompt(5, 2)]))
        assert known == 130
        logits.append(after)
    assert not torch.equal(*logits)
    assert (logits[0] - logits[1]).abs().mean() < 0.05 * logits[0].std()
