"""A prefill worker and a decode loop give the events of one engine."""

from dataclasses import replace
from os import SEEK_END
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from ringkv.base.cache_spec import PLAIN_SLOTS, SlotFormat
from ringkv.base.config import EngineConfig
from ringkv.base.events import Event, Failed, Finished, Scored, Token, TokenLogprob
from ringkv.base.kv import KVChoice
from ringkv.base.request import Request
from ringkv.engine.build import build
from ringkv.handoff.identity import Identity, fingerprint
from ringkv.handoff.messages import Prefix
from ringkv.handoff.shape import PrefixShape
from ringkv.scheduler.loop import Loop
from tests.engine import tiny
from tests.engine.test_engine import prompt
from tests.engine.test_golden import GEMMA3, LATENT
from tests.engine.test_selectors import EVERY
from tests.handoff.workers import decoding, prefilling, run, until
from tests.scheduler.test_guided import ListGuide

pytestmark = pytest.mark.usefixtures("compiled")  # whose results for a slot do not depend on other slots
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("Llama", {}, {}),
    "sliding": ("Gemma3", GEMMA3, {}),
    "int8": ("Llama", {}, {"slot_format": SlotFormat("int8"), "dtype": "bfloat16", "speculate": 2}),
    "int4": ("Llama", {}, {"slot_format": SlotFormat("int4", skip=1), "dtype": "bfloat16"}),
    "latents": ("DeepseekV3", LATENT, {}),
}

Group = tuple[Request, ...]


class TinyGuide(ListGuide):
    """Masks have a bit for each token of the tiny model."""

    def allowed(self, left: int) -> bytes:
        return (1 << int(self.words[len(self.taken)])).to_bytes(28, "little")


def mixed() -> list[Group]:
    """Requests of all policies and selectors, sampled and greedy, some of which share a prompt."""
    policies = [tiny.choice(name) for name in ("streaming", "snapkv", "snapstream")] + [KVChoice("full")]
    selectors = [tiny.choice("snapstream", one) for one in EVERY]
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
    return [*groups, tuple(shared), (penalised,), (forced,), (guided,), (scored,)]


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
    asked = mixed()
    expected = said(run(Loop(build(one_engine), guide=TinyGuide), asked))
    name, shape = fingerprint(one_engine), PrefixShape.of(one_engine)
    with prefilling(build(one_engine), name) as one:
        engine = build(replace(one_engine, slots=4, staged_tokens=16, store_bytes=0))
        with decoding(engine, one.address, name=name, shape=shape, guide=TinyGuide) as loop:
            found = said(run(loop, asked, one))
            until(lambda: one.worker.requests == 0, one.step)
            assert loop.stats().free_slots == 4
    assert_same(found, expected)


def test_a_prefix_has_the_bytes_of_the_formula_and_every_packet_passes_its_check(one_engine: EngineConfig) -> None:
    engine, shape = build(one_engine), PrefixShape.of(one_engine)
    assert shape.largest == engine.limits.slot_bytes + 4 * engine.limits.vocab
    for length, kv in ((20, KVChoice("full")), (200, tiny.choice("streaming")), (200, None), (40, None)):
        asked = tiny.request(prompt(length), kv=kv)
        tiny.enter(engine, asked)
        packet = engine.export(0)
        sizes = len(packet.entries), len(packet.logits)
        assert sizes == (shape.entries(packet.layouts, length), 4 * engine.limits.vocab)
        shape.check(Prefix(0, "", packet.layouts, packet.seen, packet.sampled, *sizes), length)
        engine.release(0)


def test_engines_of_other_settings_have_other_fingerprints(one_engine: EngineConfig) -> None:
    others = [
        replace(one_engine, capacity=128),
        replace(one_engine, kv=KVChoice("streaming", budget=64)),
        replace(one_engine, dtype="float16"),
        replace(one_engine, weights="int8"),
        replace(one_engine, activations="int8"),
        replace(one_engine, slot_format=SlotFormat("int8" if one_engine.slot_format == PLAIN_SLOTS else "plain")),
    ]
    assert len({fingerprint(one) for one in [one_engine, *others]}) == 7
    named = [Identity.of(one_engine).refusal(Identity.of(one)).split()[0] for one in others]
    assert named == ["capacity", "kv_policy", "dtype", "weights", "activations", "kv_format"]
    assert fingerprint(replace(one_engine, slots=9, threads=5, store_bytes=0)) == fingerprint(one_engine)


def test_weights_that_differ_in_one_number_have_another_fingerprint(one_engine: EngineConfig, tmp_path: Path) -> None:
    folder = copytree(one_engine.model_dir, tmp_path / "copy")
    same = replace(one_engine, model_dir=folder)
    assert fingerprint(same) == fingerprint(one_engine)
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-2, SEEK_END)
        file.write(b"!")
    assert fingerprint(same) != fingerprint(one_engine)
