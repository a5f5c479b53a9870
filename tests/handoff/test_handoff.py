"""A prefill worker and a decode loop give the events of one engine."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from os import SEEK_END
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

from ringkv.base.cache_spec import PageFormat, SlotFormat
from ringkv.base.config import EngineConfig
from ringkv.base.engine import Packet
from ringkv.base.events import Event, Failed, Finished, Scored, Token, TokenLogprob
from ringkv.base.kv import KVChoice
from ringkv.base.request import Request
from ringkv.cache.layouts import layouts
from ringkv.engine.build import build
from ringkv.handoff.identity import Identity, fingerprint
from ringkv.handoff.messages import Prefix
from ringkv.handoff.shape import PrefixShape
from ringkv.scheduler.loop import Loop
from ringkv.wire.link import InvalidMessage
from tests.engine import tiny
from tests.engine.test_engine import prompt
from tests.engine.test_golden import GEMMA3, LATENT
from tests.engine.test_selectors import EVERY
from tests.handoff.workers import decoding, ends, prefilling, run, until
from tests.scheduler.test_guided import ListGuide

RECALLING = tiny.choice("arkvale", budget=96)
pytestmark = pytest.mark.usefixtures("compiled")  # whose results for a slot do not depend on other slots
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("Llama", {}, {}),
    "sliding": ("Gemma3", GEMMA3, {}),
    "int8": ("Llama", {}, {"slot_format": SlotFormat("int8"), "dtype": "bfloat16", "speculate": 2}),
    "int4": ("Llama", {}, {"slot_format": SlotFormat("int4", skip=1), "dtype": "bfloat16"}),
    "latents": ("DeepseekV3", LATENT, {}),
    "workspace": ("Llama", {}, {"prefill_workspace": 128}),
    "ragged": ("Llama", {}, {"kv": tiny.choice("snapstream", heads="global")}),
    "ragged in int8": (
        "Llama",
        {},
        {
            "kv": tiny.choice("snapstream", heads="global"),
            "slot_format": SlotFormat("int8", "ragged"),
            "dtype": "bfloat16",
        },
    ),
    "arkvale": ("Llama", {}, {"kv": RECALLING, "capacity": 320, "slot_format": SlotFormat(reading=PageFormat(16))}),
    "arkvale in int8": (
        "Llama",
        {},
        {"kv": RECALLING, "capacity": 320, "slot_format": SlotFormat("int8", PageFormat(16)), "dtype": "bfloat16"},
    ),
    "scissorhands": ("Llama", {}, {"kv": tiny.choice("scissorhands", review=16)}),
    "scissorhands in int4": (
        "Llama",
        {},
        {
            "kv": tiny.choice("scissorhands", review=16),
            "slot_format": SlotFormat("int4", queries=16),
            "dtype": "bfloat16",
        },
    ),
    "zipcache": (
        "Llama",
        {},
        {
            "kv": tiny.choice("snapstream", budget=256, recent=160),
            "capacity": 256,
            "slot_format": SlotFormat("zipcache", skip=1),
            "dtype": "bfloat16",
        },
    ),
}

Group = tuple[Request, ...]


class TinyGuide(ListGuide):
    """Masks have a bit for each token of the tiny model."""

    def allowed(self, left: int) -> bytes:
        return (1 << int(self.words[len(self.taken)])).to_bytes(28, "little")


def mixed(default: KVChoice) -> list[Group]:
    """Requests of all policies and selectors, sampled and greedy, some of which share a prompt.

    They have the engine's `kv_heads`, if their selector allows it.
    """
    policies = [tiny.choice(name) for name in ("streaming", "snapkv", "snapstream")] + [KVChoice("full")]
    selectors = [
        tiny.choice("snapstream", select, heads="equal" if select.joins_heads else default.heads) for select in EVERY
    ]
    groups = [
        (tiny.request(prompt(20 + 7 * n, n), f"{n}", kv, temperature=0.9, seed=n, max_tokens=12),)
        for n, kv in enumerate([*policies, *selectors, None])
    ]
    shared = [tiny.request(prompt(90, 40), f"shared-{n}", temperature=1.0, max_tokens=9) for n in range(3)]
    penalised = tiny.request(
        prompt(80, 41), "p", repetition_penalty=1.3, frequency_penalty=0.4, logprobs=2, max_tokens=20
    )
    forced = replace(tiny.request(prompt(60, 42), "forced", max_tokens=6), forced=(5, 6, 7))
    guided = tiny.request(prompt(30, 44), "guided", grammar="5 6 7 8", max_tokens=4)
    scored = tiny.request(prompt(50, 43), "scored", prompt_logprobs=2, max_tokens=4)
    long = tiny.request(prompt(210, 45), "long", max_tokens=130, ignore_eos=True)
    return [*groups, tuple(shared), (penalised,), (forced,), (guided,), (scored,), (long,)]


Said = tuple[dict[str, list[Any]], dict[str, list[float]]]


def said(events: list[Event]) -> Said:
    """Each request's tokens and how it ended, and its log-probabilities: of prompts, of tokens and of the top ones.

    What was cached is left out.
    """
    found: Said = ({}, {})
    for event in events:
        mine, values = (one.setdefault(event.request_id, []) for one in found)
        for logprob in logprobs_of(event):
            values += [logprob.logprob, *(value for _, value in logprob.top)]
            mine += [token for token, _ in logprob.top]
        match event:
            case Finished(usage=usage):
                mine.append(replace(event, usage=replace(usage, cached_tokens=0)))
            case Token():
                mine.append(replace(event, logprob=None))
            case Failed():
                mine.append(event)
    return found


def logprobs_of(event: Event) -> tuple[TokenLogprob, ...]:
    match event:
        case Scored(logprobs=logprobs):
            return logprobs
        case Token(logprob=TokenLogprob() as logprob):
            return (logprob,)
    return ()


def assert_same(found: Said, expected: Said) -> None:
    """Fail unless tokens and ends are the same, and log-probabilities except for the last bits of float32."""
    assert found[0].keys() == expected[0].keys()
    for name in expected[0]:
        assert found[0][name] == expected[0][name]
        assert found[1][name] == pytest.approx(expected[1][name], abs=1e-5)


@pytest.fixture(scope="module", params=MODELS)
def one_engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    kind, changes, options = MODELS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    tiny.save(folder, kind, **changes)
    return tiny.config(folder, store_bytes=1 << 22, **options)


def test_two_workers_answer_as_one_engine(one_engine: EngineConfig) -> None:
    asked = mixed(one_engine.kv)
    expected = said(run(Loop(build(one_engine), guide=TinyGuide), asked))
    name, shape = fingerprint(one_engine), PrefixShape.of(one_engine)
    with prefilling(build(one_engine), name) as one:
        engine = build(replace(one_engine, slots=4, staged_tokens=16, store_bytes=0))
        with decoding(engine, one.address, name=name, shape=shape, guide=TinyGuide) as loop:
            found = said(run(loop, asked, one))
            until(lambda: one.worker.requests == 0, one.step)
            assert loop.stats().free_slots == 4
    assert_same(found, expected)


def test_a_decode_worker_may_have_entries_in_files(llama_dir: Path, tmp_path: Path) -> None:
    """Its one slot has earlier entries when the next prefix arrives."""
    config = tiny.config(llama_dir, **MODELS["arkvale"][2])
    asked = [(tiny.request(prompt(n, n), f"{n}", max_tokens=40, ignore_eos=True),) for n in (200, 30, 120, 7)]
    expected = said(run(Loop(build(config)), asked))
    on_disk = replace(config, slot_format=SlotFormat(reading=PageFormat(16, on_disk=True)), kv_tier=tmp_path, slots=1)
    name, shape = fingerprint(config), PrefixShape.of(on_disk)
    assert fingerprint(on_disk) == name
    assert shape.largest == PrefixShape.of(config).largest
    engine, sender = build(on_disk), build(config)
    with prefilling(sender, name) as one, decoding(engine, one.address, name=name, shape=shape) as loop:
        found = said(run(loop, asked, one))
    assert found[0].keys() == expected[0].keys()
    for asked_of, (*tokens, _) in expected[0].items():  # the usage at the end counts pages that were in files
        assert found[0][asked_of][:-1] == tokens


def test_a_prefix_has_the_bytes_of_the_formula_and_every_packet_passes_its_check(one_engine: EngineConfig) -> None:
    engine, shape = build(one_engine), PrefixShape.of(one_engine)
    assert shape.largest == engine.limits.slot_bytes + 4 * engine.limits.vocab
    for group, body in zip(shape.parts.groups, engine.batch.bodies, strict=True):
        parts = group.parts(one_engine.capacity, 16, shape.parts.item)
        assert [part.bytes for part in parts] == [tensor.nbytes for tensor in body.parts(1, 16)]
    for length, kv in ((20, KVChoice("full")), (200, tiny.choice("streaming")), (200, None), (40, None)):
        asked = tiny.request(prompt(length), kv=kv)
        tiny.enter(engine, asked)
        packet = engine.export(0)
        sizes = len(packet.entries), len(packet.logits)
        assert sizes == (shape.entries(packet.layouts, length), 4 * engine.limits.vocab)
        header = Prefix(0, "", packet.layouts, packet.seen, packet.sampled, *sizes)
        shape.check(header, length)
        shape.check_numbers(header, memoryview(packet.entries))
        engine.release(0)


def test_engines_of_other_settings_have_other_fingerprints(one_engine: EngineConfig) -> None:
    slots = one_engine.slot_format
    others = [
        replace(one_engine, capacity=128),
        replace(one_engine, kv=KVChoice("streaming", budget=64)),
        replace(one_engine, dtype="float16"),
        replace(one_engine, weights="int8"),
        replace(one_engine, activations="int8"),
        replace(one_engine, prefill_workspace=192),
        replace(one_engine, slot_format=slots._replace(encoding="int8" if slots.encoding == "plain" else "plain")),
    ]
    assert len({fingerprint(one) for one in [one_engine, *others]}) == 8
    named = [Identity.of(one_engine).refusal(Identity.of(one)).split()[0] for one in others]
    assert named == ["capacity", "kv_policy", "dtype", "weights", "activations", "prefill_workspace", "kv_format"]
    assert fingerprint(replace(one_engine, slots=9, threads=5, store_bytes=0)) == fingerprint(one_engine)


def test_weights_that_differ_in_one_number_have_another_fingerprint(one_engine: EngineConfig, tmp_path: Path) -> None:
    folder = copytree(one_engine.model_dir, tmp_path / "copy")
    same = replace(one_engine, model_dir=folder)
    assert fingerprint(same) == fingerprint(one_engine)
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-2, SEEK_END)
        file.write(b"!")
    assert fingerprint(same) != fingerprint(one_engine)


DAMAGE: Mapping[str, tuple[str, type, Sequence[float]]] = {
    "places": ("ragged", np.int32, (-1, 1, 1 << 20, -(1 << 20))),
    "counts of pages": ("arkvale", np.int32, (-1, 0, 1 << 20)),
    "pins": ("arkvale", np.float32, (0, float("nan"))),
    "positions": ("scissorhands", np.int32, (-1, 200)),
    "history": ("scissorhands", np.uint8, (1, 255)),
    "counts of chunks": ("zipcache", np.int32, (-1, 101, 1 << 20)),
}
"""By a tensor's name: a model that has it, the type of its numbers, and numbers that it does not have."""


def damaged(packet: Packet, shape: PrefixShape, name: str, kind: type, place: int, number: float) -> Packet:
    """Return a packet with another number in a tensor of its last group that has one of this name."""
    entries, stop = np.frombuffer(bytearray(packet.entries), np.uint8), len(packet.entries)
    for group, layout in reversed([*zip(shape.parts.groups, packet.layouts, strict=True)]):
        for part in reversed([*group.parts(shape.parts.capacity, layout.live(packet.seen), shape.parts.item)]):
            if part.name == name:
                entries[stop - part.bytes : stop].view(kind)[place] = number
                return packet._replace(entries=entries.tobytes())
            stop -= part.bytes
    raise AssertionError(f"the packet has no {name}")


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_number_is_refused_before_it_is_in_a_slot(
    llama_dir: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, kind, values = DAMAGE[name]
    config = tiny.config(llama_dir, **MODELS[model][2])
    sender, receiver, shape = build(config), build(config), PrefixShape.of(config)
    asked, export = tiny.request(prompt(200)), sender.export
    tiny.enter(sender, asked)
    packet = sender.export(0)
    sizes = len(packet.entries), len(packet.logits)
    header = Prefix(0, "", packet.layouts, packet.seen, packet.sampled, *sizes)
    shape.check_numbers(header, memoryview(packet.entries))
    for place, number in product((0, -1), values):
        bad = damaged(packet, shape, name, kind, place, number)
        if bad.entries != packet.entries:
            with pytest.raises(InvalidMessage, match=name):
                shape.check_numbers(header, memoryview(bad.entries))
    sender.release(0)
    monkeypatch.setattr(sender, "export", lambda slot: damaged(export(slot), shape, name, kind, 0, values[-1]))
    monkeypatch.setattr(receiver, "restore", lambda *_: pytest.fail("it was written"))
    with prefilling(sender) as one, decoding(receiver, one.address, shape=shape) as loop:
        failed = ends(run(loop, [(asked,)], one))[asked.id]
        assert isinstance(failed, Failed)
        assert failed.kind == "PrefillUnavailable"
        assert f"invalid {name}" in failed.message


IN_HOST = {"slot_format": SlotFormat(reading=PageFormat(16, resident=9))}


@pytest.mark.parametrize(
    ("model", "options", "changes"),
    [
        ("arkvale", {}, {"read": 321}),
        ("arkvale", {}, {"leading": -1}),
        ("arkvale", {}, {"newest": 321}),
        ("arkvale", IN_HOST, {"read": 160}),
        ("arkvale", IN_HOST, {"read": 0}),
        ("scissorhands", {}, {"review": 17}),
        ("scissorhands", {}, {"review": -1}),
        ("scissorhands", {}, {"layers": 4}),
        ("scissorhands", {}, {"steps": 0}),
        ("scissorhands", {}, {"steps": 17}),
    ],
)
def test_a_layout_that_steps_cannot_follow_is_refused(
    llama_dir: Path, model: str, options: dict[str, Any], changes: dict[str, int]
) -> None:
    config = tiny.config(llama_dir, **{**MODELS[model][2], **options})
    shape, plans = PrefixShape.of(config), layouts(config.kv, 200, config.capacity, PrefixShape.of(config).parts.groups)
    for plan in (plans, tuple(plan._replace(**changes) for plan in plans)):
        header = Prefix(0, "", plan, 200, {}, shape.entries(plan, 200), shape.logits)
        with nullcontext() if plan is plans else pytest.raises(InvalidMessage, match="Layout"):
            shape.check(header, 200)
