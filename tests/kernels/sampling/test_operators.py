"""The sampling operators against the tiers in plain torch, row by row."""

import random
from collections.abc import Iterator

import pytest
import torch

from ringkv.base.request import Request
from ringkv.base.sampling import SamplerTier, SamplingParams
from ringkv.engine.sampling.state import SamplingState
from ringkv.kernels.library import is_native
from ringkv.kernels.sampling import operators
from ringkv.kernels.sampling.tiers import BAD, DRAFT_FIELDS, SAMPLERS, Inputs, scores

SETTINGS: tuple[dict[str, float], ...] = (
    {},
    {"temperature": 0.7},
    {"temperature": 5.0},
    {"temperature": 1e-5},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 0.9, "top_p": 0.8},
    {"temperature": 0.9, "min_p": 0.05, "top_p": 0.99, "top_k": 700},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8, "temperature": 0.6, "frequency_penalty": 0.4, "presence_penalty": -0.3},
    {"min_tokens": 3, "logprobs": 2},
    {"temperature": 1.3, "top_k": 50, "logprobs": 0, "presence_penalty": 1.0},
)


@pytest.fixture(params=["reference", "native"], autouse=True)
def _kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "native":
        request.getfixturevalue("compiled")
        assert is_native("sample")
        return
    monkeypatch.setattr(operators, "sample", operators.reference)
    monkeypatch.setattr(operators, "top_logprobs", operators.scores_reference)


def state_of(settings: list[dict[str, float]], vocab: int) -> SamplingState:
    """Return a slot for each, with some tokens; in every third a grammar allows a fifth of the vocabulary."""
    rng = random.Random(vocab)
    state = SamplingState.neutral(len(settings), vocab, torch.device("cpu"))
    for slot, setting in enumerate(settings):
        bias = {rng.randrange(vocab): 2.0 for _ in range(4)} if "logprobs" in setting else {}
        grammar = "any" if slot % 3 == 0 and "min_tokens" not in setting else ""
        params = SamplingParams(**setting, seed=slot * 7 - 3, logit_bias=bias, grammar=grammar)  # type: ignore[arg-type]
        state.enter(slot, Request("r", tuple(rng.choices(range(vocab), k=9)), params, eos=(rng.randrange(vocab),)))
        if grammar:
            bits = sum(1 << token for token in range(0, vocab, 5))
            state.allow(slot, bits.to_bytes(4 * -(-vocab // 32), "little"))
    for _ in range(2):
        state.count(torch.tensor([[rng.randrange(vocab)] for _ in settings]))
    return state


def steps(state: SamplingState, vocab: int, scale: float, count: int) -> Iterator[Inputs]:
    slots = len(state.seed)
    for step in range(count):
        torch.manual_seed(step)
        position = torch.arange(slots) * 11 + step
        yield state.inputs(torch.randn(slots, vocab) * scale, torch.full((slots,), -1), position)


def by_tiers(inputs: Inputs) -> list[int]:
    """Sample each row alone, with the tier that it needs."""
    rows = [Inputs(*(tensor[row : row + 1] for tensor in inputs)) for row in range(len(inputs.tier))]
    return [int(SAMPLERS[SamplerTier(int(row.tier))](row)[0]) for row in rows]


@pytest.mark.parametrize("scale", [0.5, 3.0, 30.0])
@pytest.mark.parametrize("vocab", [40, 1000, 5_001])
def test_each_row_samples_what_its_tier_does(vocab: int, scale: float) -> None:
    state = state_of([*SETTINGS, *SETTINGS], vocab)
    for inputs in steps(state, vocab, scale, 4):
        assert operators.sample(*inputs[:-1]).tolist() == by_tiers(inputs)


@pytest.mark.parametrize("vocab", [1000, 5_001])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.95])
def test_one_sample_after_another_is_what_the_tiers_sample(vocab: int, top_p: float) -> None:
    """Most first samples are not kept at a low top_p, so the next ones decide."""
    settings = [{"temperature": 1.5, "top_p": top_p, "seed": seed} for seed in range(12)]
    state = SamplingState.neutral(12, vocab, torch.device("cpu"))
    for slot, setting in enumerate(settings):
        state.enter(slot, Request("r", (1,), SamplingParams(**setting)))  # type: ignore[arg-type]
    for inputs in steps(state, vocab, 2.0, 4):
        assert operators.sample(*inputs[:-1]).tolist() == by_tiers(inputs)


@pytest.mark.usefixtures("compiled")
def test_a_penalty_that_overflows_gives_the_infinite_logit() -> None:
    state = state_of([{"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 0.01}], 200)
    inputs = next(steps(state, 200, 1.0, 1))
    inputs.allowed.fill_(-1)
    prompt = int(inputs.in_prompt[0].nonzero()[0])
    inputs.logits[0, prompt] = 1e38
    assert torch.ops.ringkv.sample(*inputs[:-1]).tolist() == [prompt]


@pytest.mark.parametrize("allowed", [(7,), (63, 64), (0, 199)])
def test_a_grammar_that_allows_few_tokens_leaves_no_other(allowed: tuple[int, ...]) -> None:
    state = SamplingState.neutral(3, 200, torch.device("cpu"))
    bits = sum(1 << token for token in allowed).to_bytes(28, "little")
    for slot, setting in enumerate(({}, {"temperature": 9.0}, {"temperature": 9.0, "top_k": 9, "top_p": 0.999})):
        state.enter(slot, Request("r", (1,), SamplingParams(**setting, seed=1, grammar="any")))  # type: ignore[arg-type]
        state.allow(slot, bits)
    found = [operators.sample(*inputs[:-1]).tolist() for inputs in steps(state, 200, 5.0, 20)]
    assert {token for row in found for token in row} == set(allowed)
    assert found == [by_tiers(inputs) for inputs in steps(state, 200, 5.0, 20)]


def test_equal_logits_are_decided_by_the_noise_alone() -> None:
    state = state_of([{"temperature": 1.0}, {"temperature": 0.1}, {}] * 3, 500)
    inputs = next(steps(state, 500, 0.0, 1))
    assert operators.sample(*inputs[:-1]).tolist() == by_tiers(inputs)


@pytest.mark.parametrize("high", [1e30, 3e38])
def test_huge_logits_are_sampled_as_any_other(high: float) -> None:
    state = state_of([{"temperature": 1.0}, {"temperature": 2.0, "top_p": 0.9}], 100)
    inputs = next(steps(state, 100, 1.0, 1))
    inputs.logits[:, 30:] = high
    assert operators.sample(*inputs[:-1]).tolist() == by_tiers(inputs)


def test_a_row_whose_logits_are_not_finite_is_bad_and_its_neighbours_are_not() -> None:
    state = state_of([{}, {"temperature": 1.0}] * 4, 200)
    inputs = next(steps(state, 200, 1.0, 1))
    sound = operators.sample(*inputs[:-1]).tolist()
    inputs.logits[0, 199], inputs.logits[3, 0] = float("nan"), float("inf")
    inputs.logits[5] = float("-inf")
    sampled = operators.sample(*inputs[:-1]).tolist()
    assert sampled == [BAD if row in (0, 3, 5) else token for row, token in enumerate(sound)]


def test_a_forced_token_is_taken() -> None:
    state = state_of([{}, {"temperature": 1.0, "top_k": 3}], 200)
    inputs = next(steps(state, 200, 1.0, 1))._replace(forced=torch.tensor([7, 9]))
    assert operators.sample(*inputs[:-1]).tolist() == [7, 9]


def test_nothing_is_sampled_for_a_free_slot() -> None:
    state = state_of([{}, {}, {"temperature": 1.0}], 200)
    state.leave(1)
    inputs = next(steps(state, 200, 1.0, 1))
    assert (operators.sample(*inputs[:-1]) == BAD).tolist() == [False, True, False]


def test_drafts_need_no_planes() -> None:
    state = state_of(
        [{"temperature": 1.0}, {}, {"temperature": 1.0, "top_p": 0.7}, {"temperature": 2.0, "top_k": 5}], 200
    )
    state.allowed.fill_(-1)
    inputs = next(steps(state, 200, 1.0, 1))
    assert operators.sample(*inputs[: len(DRAFT_FIELDS)]).tolist() == by_tiers(inputs)


@pytest.mark.parametrize("vocab", [7, 40, 5_001])
def test_log_probabilities_are_those_of_the_model(vocab: int) -> None:
    torch.manual_seed(vocab)
    logits, tokens = (torch.randn(4, vocab) * 5), torch.tensor([0, 3, 6, BAD])
    logits[2] = logits[2].round()
    own, ids, top = operators.top_logprobs(logits, tokens, torch.ones(4, dtype=torch.bool))
    want, _, want_top = scores(logits.double(), tokens)
    torch.testing.assert_close(own, want.float(), atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(top, want_top.float(), atol=2e-6, rtol=2e-6)
    assert torch.equal(logits.gather(1, ids), logits.topk(min(20, vocab)).values)
    assert all(len(set(row)) == len(row) for row in ids.tolist())
