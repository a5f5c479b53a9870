"""Drafts change how many tokens a step gives, never which: held against the same requests without any."""

from pathlib import Path
from random import Random

import pytest
import torch

from ringkv.base.kv import KVChoice
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from tests.engine import tiny

KV = tiny.choice("snapstream", budget=40, recent=8)
SAMPLING = [{}, {"temperature": 0.3, "seed": 3}, {"temperature": 1.0, "seed": 5}, {"temperature": 4.0, "seed": 7}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.save(folder, "Llama")
    return folder


@pytest.fixture(scope="module")
def plain(folder: Path) -> LocalEngine:
    return build(tiny.config(folder))


@pytest.fixture(scope="module")
def drafting(folder: Path) -> LocalEngine:
    return build(tiny.config(folder, speculate=3))


def prompt(n: int, seed: int = 0) -> list[int]:
    return Random(seed).choices(range(3, 199), k=n)


def requests(kv: KVChoice = KV, **changes: object) -> list[Request]:
    return [tiny.request(prompt(60 + i, i), f"r{i}", kv, ignore_eos=True, **kind, **changes) for i, kind in enumerate(SAMPLING)]


def alone(engine: LocalEngine, request: Request, steps: int) -> list[int]:
    """One request's tokens without drafts."""
    tiny.enter(engine, request)
    tokens, _ = tiny.decode(engine, steps)
    engine.release(0)
    return tokens


def with_drafts(engine: LocalEngine, request: Request, known: list[int], right: float, slot: int = 0) -> tuple[list[int], int]:
    """The same, with drafts of which a share is right (`known` are the tokens to come): tokens, and passes taken."""
    random, tokens, passes = Random(1), [], 0
    tiny.enter(engine, request, slot)
    while len(tokens) < len(known):
        tokens += [one.token for one in engine.sample().read()[slot]]
        guess = known[len(tokens) : len(tokens) + random.randint(1, 3)]
        drafts = [token if random.random() < right else random.randrange(199) for token in guess]
        engine.forward({slot: drafts} if drafts else {})
        passes += 1
    engine.release(slot)
    return tokens, passes


@pytest.mark.parametrize("right", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("at", range(len(SAMPLING)))
def test_tokens_are_the_same_with_drafts_over_a_ring_that_wraps_often(
    plain: LocalEngine, drafting: LocalEngine, at: int, right: float
) -> None:
    asked = requests()[at]
    known = alone(plain, asked, 90)
    tokens, passes = with_drafts(drafting, asked, known, right)
    assert tokens[:90] == known
    assert passes == 90 if right == 0.0 else passes < 90
