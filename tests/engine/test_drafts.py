"""Drafts change how many tokens a step gives, never which: held against the same requests without any.

In bfloat16, whose products are our own: those round a row alike beside any other rows.
"""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from weakref import ref

import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ringkv.base.errors import InvalidRequest
from ringkv.base.request import Request
from ringkv.engine import build as build_module
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from tests.engine import tiny
from tests.engine.test_golden import GEMMA3, GEMMA3_ROPES

KV = tiny.choice("snapstream", budget=40, recent=8)
SAMPLING: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3, "seed": 3},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 4.0, "seed": 7},
    {"temperature": 1.0, "seed": 9, "top_p": 0.9},
    {"temperature": 2.0, "seed": 11, "top_k": 20, "min_p": 0.05, "logprobs": 2},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.save(folder, "Llama")
    return folder


@pytest.fixture(scope="module")
def plain(folder: Path) -> LocalEngine:
    return build(tiny.config(folder, dtype="bfloat16"))


@pytest.fixture(scope="module")
def drafting(folder: Path) -> LocalEngine:
    return build(tiny.config(folder, dtype="bfloat16", speculate=3))


def prompt(n: int, seed: int = 0) -> list[int]:
    return Random(seed).choices(range(3, 199), k=n)


def requests(**changes: object) -> list[Request]:
    return [
        tiny.request(prompt(60 + i, i), f"r{i}", KV, ignore_eos=True, **kind, **changes)
        for i, kind in enumerate(SAMPLING)
    ]


def alone(engine: LocalEngine, request: Request, steps: int) -> list[int]:
    """One request's tokens without drafts."""
    tiny.enter(engine, request)
    tokens, _ = tiny.decode(engine, steps)
    engine.release(0)
    return tokens


def with_drafts(
    engine: LocalEngine, request: Request, known: list[int], right: float, slot: int = 0
) -> tuple[list[int], int]:
    """The same, with drafts of which a share is right (`known` are the tokens to come): tokens, and passes taken."""
    random, tokens, passes = Random(1), [], 0
    tiny.enter(engine, request, slot)
    layout = engine.compress(0, request.kv or engine.default_kv)[0]
    while len(tokens) < len(known):
        tokens += [one.token for one in engine.sample().read()[slot]]
        seen, limit = layout.prompt + len(tokens), random.randint(1, 3)
        guess = known[len(tokens) : len(tokens) + (min(limit, layout.until_scored(seen)) if layout.review else limit)]
        drafts = [token if random.random() < right else (token + random.randrange(1, 199)) % 199 for token in guess]
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


@pytest.mark.parametrize("kind", [{}, {"temperature": 1.0, "seed": 9, "top_p": 0.9}], ids=["greedy", "truncated"])
def test_accepted_drafts_have_the_log_probabilities_of_steps_without(
    plain: LocalEngine, drafting: LocalEngine, kind: dict[str, Any]
) -> None:
    asked = tiny.request(prompt(60), "l", KV, ignore_eos=True, logprobs=3, **kind)
    silent = tiny.request(prompt(50), "s", KV, ignore_eos=True)
    tiny.enter(plain, asked)
    known = []
    for _ in range(60):
        known += plain.sample().read()[0]
        plain.forward()
    plain.release(0)
    tiny.enter(drafting, asked)
    tiny.enter(drafting, silent, slot=1)
    sampled, others = [], []
    while len(sampled) < 60:
        runs = drafting.sample().read()
        sampled += runs[0]
        others += runs[1]
        ahead = [each.token for each in known[len(sampled) : len(sampled) + 2]]
        drafting.forward({0: [*ahead, 5]} if ahead else {})
    assert sampled[:60] == known
    assert all(len(each.logprob.top) == 3 for each in sampled)
    assert all(each.logprob is None for each in others)
    drafting.release(0)
    drafting.release(1)


def test_a_slot_without_drafts_is_not_changed_by_a_neighbours(plain: LocalEngine, drafting: LocalEngine) -> None:
    first, second = (
        requests()[0],
        tiny.request(prompt(70, 9), "n", KV, ignore_eos=True, temperature=1.0, seed=2, top_p=0.9),
    )
    known, beside = alone(plain, first, 60), alone(plain, second, 60)
    tiny.enter(drafting, second, slot=2)
    tiny.enter(drafting, first, slot=0)
    ours, theirs = [], []
    while len(theirs) < 60:
        runs = drafting.sample().read()
        ours += [one.token for one in runs[0]]
        theirs += [one.token for one in runs[2]]
        drafting.forward({0: [*known[len(ours) : len(ours) + 2], 5]} if len(ours) < 50 else {})
    assert theirs == beside
    assert ours[:60] == known
    drafting.release(0)
    drafting.release(2)


@pytest.mark.parametrize("policy", ["full", "streaming", "snapstream", "snapkv"])
def test_every_layout_takes_drafts(plain: LocalEngine, drafting: LocalEngine, policy: str) -> None:
    budget = 64 if policy in ("full", "snapkv") else 40
    asked = tiny.request(prompt(30), "p", tiny.choice(policy, budget=budget, recent=8), ignore_eos=True)
    steps = 30
    known = alone(plain, asked, steps)
    assert with_drafts(drafting, asked, known, 0.7)[0][:steps] == known


def test_reviewed_slots_take_drafts_between_the_turns_of_their_layers(folder: Path) -> None:
    """Three layers are scored before the last three of 8 tokens; so a step may take up to three drafts before that."""
    kv = tiny.choice("scissorhands", budget=40, recent=8, review=8)
    plain, drafting = (build(tiny.config(folder, dtype="bfloat16", kv=kv, speculate=drafts)) for drafts in (0, 3))
    for kind in SAMPLING:
        asked = tiny.request(prompt(60), "r", kv, ignore_eos=True, max_tokens=90, **kind)
        known = alone(plain, asked, 90)
        plain.release(0)
        tokens, passes = with_drafts(drafting, asked, known, 0.7)
        assert tokens[:90] == known
        assert passes < 80


def test_an_exported_request_leaves_its_drafts_behind(plain: LocalEngine, drafting: LocalEngine) -> None:
    asked = requests()[2]
    known = alone(plain, asked, 80)
    tiny.enter(drafting, asked)
    tokens = []
    while len(tokens) < 50:
        tokens += [one.token for one in drafting.sample().read()[0]]
        drafting.forward({0: [known[len(tokens)], 7, 8]})
    packet = drafting.export(0)
    drafting.release(0)
    plain.restore(packet, 1)
    for _ in range(80 - len(tokens)):
        tokens += [one.token for one in plain.sample().read()[1]]
        plain.forward()
    plain.release(1)
    assert tokens == known


def test_a_slot_is_given_away_with_nothing_of_its_drafts(plain: LocalEngine, drafting: LocalEngine) -> None:
    first, then = requests()[0], requests()[1]
    known = alone(plain, then, 40)
    tiny.enter(drafting, first)
    drafting.sample()
    drafting.forward({0: [3, 4, 5]})
    drafting.release(0)
    assert with_drafts(drafting, then, known, 0.5)[0][:40] == known


def test_entries_and_counts_are_those_of_as_many_steps(plain: LocalEngine, drafting: LocalEngine) -> None:
    asked = requests()[1]
    known = alone(plain, asked, 70)
    tiny.enter(drafting, asked)
    tokens = []
    while len(tokens) < 60:
        tokens += [one.token for one in drafting.sample().read()[0]]
        drafting.forward({0: [*known[len(tokens) : len(tokens) + 2], 11]})
    tiny.enter(plain, asked)
    tiny.decode(plain, len(tokens))
    ours, theirs = drafting.export(0), plain.export(0)
    assert (ours.seen, ours.sampled) == (theirs.seen, theirs.sampled)
    assert ours.entries == theirs.entries
    assert ours.logits == theirs.logits
    drafting.release(0)
    plain.release(0)


def test_window_layers_take_drafts_beside_compressed_layers(tmp_path: Path) -> None:
    tiny.save(tmp_path, "Gemma3", **GEMMA3, rope_parameters=GEMMA3_ROPES)
    plain, drafting = (build(tiny.config(tmp_path, dtype="bfloat16", speculate=drafts)) for drafts in (0, 3))
    asked = tiny.request(prompt(70), kv=KV, ignore_eos=True, temperature=0.8, seed=4)
    known = alone(plain, asked, 60)
    assert with_drafts(drafting, asked, known, 0.7)[0][:60] == known


@pytest.mark.parametrize("activations", ["16-bit", "int8"])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantised_weights_give_the_same_tokens_with_drafts(folder: Path, weights: str, activations: str) -> None:
    stored = {"weights": weights, "activations": activations}
    plain, drafting = (
        build(tiny.config(folder, dtype="bfloat16", **stored, slots=1, speculate=drafts)) for drafts in (0, 3)
    )
    asked = requests()[1]
    known = alone(plain, asked, 60)
    tokens, passes = with_drafts(drafting, asked, known, 0.8)
    assert tokens[:60] == known
    assert passes < 60


def test_a_loop_with_drafts_gives_what_one_without_gives(plain: LocalEngine, drafting: LocalEngine) -> None:
    """Prompts that repeat themselves, so that drafts are found; whether they are right is the model's affair."""
    asked = [
        tiny.request(prompt(12, i) * 5, f"r{i}", KV, max_tokens=60, ignore_eos=True, **kind)
        for i, kind in enumerate(SAMPLING)
    ]
    answers = [tiny.serve(engine, one)[one.id] for engine in (plain, drafting) for one in asked]
    assert answers[: len(asked)] == answers[len(asked) :]


def test_speculation_that_could_never_run_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="choose fewer slots") as raised:
        build(tiny.config(folder, slots=20, speculate=3))  # float32: a step always has all slots
    assert raised.value.param == "speculate"


class Allocations(TorchDispatchMode):
    """Notes the tensors that operators allocate."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[ref[Tensor]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        given = {one.untyped_storage().data_ptr() for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        for one in tree_leaves(result):
            if isinstance(one, Tensor) and one.numel() and one.untyped_storage().data_ptr() not in given:
                self.tensors.append(ref(one))
        return result


class SharedPool:
    """Captures steps as CUDA graphs with one pool are: a replay overwrites what other steps have allocated."""

    def __init__(self) -> None:
        self.allocated: dict[object, Allocations] = {}

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            for other, allocations in self.allocated.items():
                for one in allocations.tensors if other is not step else ():
                    if (tensor := one()) is not None:
                        tensor.fill_(7)
            self.allocated[step] = Allocations()
            with self.allocated[step]:
                step()

        return replay


def test_what_rejected_drafts_put_back_outlives_the_replay_of_other_captured_steps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = SharedPool()
    monkeypatch.setattr(build_module, "no_capture", pool)
    asked = requests()[0]
    engines = [build(tiny.config(folder, speculate=drafts)) for drafts in (0, 3)]  # float32: captured, in fixed sizes
    known = alone(engines[0], asked, 60)
    tokens, passes = with_drafts(engines[1], asked, known, 0.3)
    assert len(pool.allocated) > 3
    assert tokens[:60] == known
    assert passes < 60
