"""The sampling tiers against explicit distributions and rules for one slot."""

import math
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ringkv.base.request import Request
from ringkv.base.sampling import SamplerTier, SamplingParams
from ringkv.engine.sampling.state import SamplingState
from ringkv.kernels.sampling import tiers
from ringkv.kernels.sampling.noise import gumbel, uniform
from ringkv.kernels.sampling.tiers import BAD, SAMPLERS, TOP, Inputs, adjusted, greedy, truncated

VOCAB = 40


def inputs(logits: torch.Tensor, **given: torch.Tensor) -> Inputs:
    """Return inputs for logits [B, V], neutral except for the given fields."""
    slots, vocab = logits.shape
    zero = torch.zeros(slots, dtype=torch.int64)
    state = SamplingState.neutral(slots, vocab, torch.device("cpu"))
    return state.inputs(logits, zero - 1, zero)._replace(**given)


def sample_one(  # type: ignore[no-untyped-def]
    logits: torch.Tensor, params: SamplingParams, seed=0, position=0, prompt=(0,), output=(), eos=(), sampler=None
):
    """Return one slot's (token, logprob, ids, logprobs), by the given sampler or the tier that its parameters need."""
    state = SamplingState.neutral(1, logits.shape[-1], torch.device("cpu"))
    state.enter(0, Request("r", tuple(prompt), replace(params, seed=seed), eos=tuple(eos)))
    for token in output:
        state.count(torch.tensor([[token]]))
    sampler = sampler or SAMPLERS[max(params.tier, SamplerTier.ADJUSTED)]
    out = sampler(state.inputs(logits[None], torch.tensor([-1]), torch.tensor([position])))
    return [t[0].tolist() for t in out]


class Operations(TorchDispatchMode):
    """Counts torch's operations."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += 1
        return func(*args, **(kwargs or {}))


def reachable(logits: torch.Tensor, params: SamplingParams, samples: int = 400, sampler=None) -> set[int]:  # type: ignore[no-untyped-def]
    """Return the tokens that are sampled at so many positions, in slots with the same parameters."""
    state = SamplingState.neutral(1, logits.shape[-1], torch.device("cpu"))
    state.enter(0, Request("r", (0,), replace(params, seed=7)))
    one = state.inputs(logits[None], torch.tensor([-1]), torch.tensor([0]))
    rows = Inputs(*(field.repeat(samples, *[1] * (field.ndim - 1)) for field in one))
    sampler = sampler or SAMPLERS[max(params.tier, SamplerTier.ADJUSTED)]
    tokens = sampler(rows._replace(position=torch.arange(samples)))[0]
    return set(tokens.tolist())


def test_samples_follow_the_softmax_of_the_logits() -> None:
    torch.manual_seed(0)
    logits, temperature, count = torch.randn(6), 0.7, 20000
    seed, temperatures = torch.full((count,), 5), torch.full((count,), temperature)
    rows = inputs(logits.repeat(count, 1), seed=seed, position=torch.arange(count), temperature=temperatures)
    (tokens,) = tiers.temperature(rows)
    want = (logits / temperature).softmax(0) * count
    seen = torch.bincount(tokens, minlength=6)
    chi_squared = ((seen - want) ** 2 / want).sum()
    assert chi_squared < 20.5  # 5 degrees of freedom: passed by 99.9% of fair samples; the seed is fixed


def test_noise_has_the_mean_and_variance_of_a_gumbel() -> None:
    noise = gumbel(torch.tensor([1, 2, -3]), torch.tensor([0, 9, 2**40]), 50000)
    assert noise.mean(1).tolist() == pytest.approx([0.5772] * 3, abs=0.03)
    assert noise.var(1).tolist() == pytest.approx([math.pi**2 / 6] * 3, rel=0.05)


def test_no_noise_is_infinite_whatever_its_bits() -> None:
    """Infinite noise would win over any logit, even of a forbidden token."""
    values = uniform(torch.tensor([-1, 0, 1, -(2**63), 2**63 - 1, -(2**41)]))
    assert ((0 < values) & (values < 1)).all()
    assert torch.log(-torch.log(values)).isfinite().all()


def test_the_same_seed_samples_the_same_in_any_slot_and_other_seeds_differ() -> None:
    logits = torch.randn(3, VOCAB).repeat(1, 1)
    logits[2] = logits[0]
    rows = inputs(logits, seed=torch.tensor([4, 5, 4]), temperature=torch.ones(3))
    samples = [tiers.temperature(rows._replace(position=torch.full((3,), 9 + i)))[0].tolist() for i in range(50)]
    assert all(tokens[0] == tokens[2] for tokens in samples)
    assert any(tokens[0] != tokens[1] for tokens in samples)


@pytest.mark.parametrize("sampler", [adjusted, truncated])
def test_neutral_parameters_sample_what_a_temperature_alone_does(sampler) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(1)
    logits = torch.randn(VOCAB) * 3
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature)
        for position in range(30):
            one = inputs(logits[None], seed=torch.tensor([11]), position=torch.tensor([position]))
            (token,) = tiers.temperature(one._replace(temperature=torch.tensor([temperature])))
            assert sample_one(logits, params, 11, position, sampler=sampler)[0] == token.item()


def test_greedy_takes_what_a_temperature_of_zero_does() -> None:
    torch.manual_seed(2)
    logits = torch.randn(5, VOCAB)
    logits[3, 7] = float("nan")
    rows = inputs(logits, seed=torch.arange(5), position=torch.arange(5) * 3, forced=torch.tensor([-1, 4, -1, -1, -1]))
    (tokens,) = greedy(rows)
    assert torch.equal(tokens, tiers.temperature(rows)[0])
    assert tokens[1].item() == 4
    assert tokens[3].item() == BAD
    assert tokens[0].item() == max(range(VOCAB), key=logits[0].tolist().__getitem__)


@pytest.mark.parametrize(
    ("params", "tier"),
    [
        (SamplingParams(), SamplerTier.GREEDY),
        (SamplingParams(temperature=0.5), SamplerTier.TEMPERATURE),
        (SamplingParams(logprobs=0), SamplerTier.ADJUSTED),
        (SamplingParams(temperature=0.5, top_p=0.9), SamplerTier.TRUNCATED),
        (SamplingParams(temperature=0.0, top_p=0.9, top_k=5, min_p=0.1), SamplerTier.GREEDY),
    ],
)
def test_a_request_needs_the_lowest_tier_that_serves_it(params: SamplingParams, tier: SamplerTier) -> None:
    assert params.tier == tier


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 9e-6])
@pytest.mark.parametrize("about", [{}, {"logprobs": 1}, {"top_p": 0.5}], ids=str)
def test_a_tiny_temperature_is_greedy(temperature: float, about: dict[str, float]) -> None:
    torch.manual_seed(4)
    logits = torch.randn(VOCAB) * 20
    params = SamplingParams(temperature=temperature, **about)  # type: ignore[arg-type]
    assert params.tier == SamplingParams(**about, temperature=0.0).tier  # type: ignore[arg-type]
    for sampler in (adjusted, truncated):
        assert reachable(logits, params, samples=5, sampler=sampler) == {int(logits.argmax())}


@pytest.mark.parametrize("top_k", [VOCAB, 10**9, 10**400])
def test_a_top_k_over_the_vocabulary_keeps_all_of_it(top_k: int) -> None:
    assert len(reachable(torch.zeros(4), SamplingParams(temperature=1.0, top_k=top_k))) == 4


@pytest.mark.parametrize("temperature", [SamplingParams.GREEDY_BELOW, SamplingParams.MAX_TEMPERATURE])
def test_the_temperatures_at_the_bounds_sample_as_any_other(temperature: float) -> None:
    logits = torch.randn(VOCAB) * 20
    seed, position = torch.tensor([3]), torch.tensor([5])
    (tokens,) = tiers.temperature(
        inputs(logits[None], seed=seed, position=position, temperature=torch.tensor([temperature]))
    )
    noise = gumbel(seed, position, VOCAB)[0].double()
    assert tokens.tolist() == [int((logits.double() / temperature + noise).argmax())]


def test_top_k_reaches_the_top_k_only() -> None:
    logits = torch.randn(VOCAB)
    assert reachable(logits, SamplingParams(temperature=2.0, top_k=3)) == set(logits.topk(3).indices.tolist())


def test_top_p_reaches_the_smallest_set_that_holds_p() -> None:
    logits = torch.tensor([0.5, 0.2, 0.2, 0.06, 0.04]).log()
    assert reachable(logits, SamplingParams(temperature=1.0, top_p=0.6)) == {0, 1}
    assert reachable(logits, SamplingParams(temperature=1.0, top_p=0.95)) == {0, 1, 2, 3}
    assert reachable(logits, SamplingParams(temperature=1.0, top_p=0.1)) == {0}


def test_min_p_drops_what_is_improbable_beside_the_top_token() -> None:
    logits = torch.tensor([0.5, 0.2, 0.2, 0.06, 0.04]).log()
    assert reachable(logits, SamplingParams(temperature=1.0, min_p=0.39)) == {0, 1, 2}


def test_penalties_change_logits_as_written() -> None:
    logits = torch.tensor([2.0, 1.9, -1.0, 0.5])
    greedy = SamplingParams(temperature=0.0)
    assert sample_one(logits, greedy)[0] == 0
    assert sample_one(logits, replace(greedy, repetition_penalty=1.2), prompt=(0,))[0] == 1
    assert (
        sample_one(logits, replace(greedy, presence_penalty=0.2), prompt=(0,))[0] == 0
    )  # a prompt token is not an output token
    assert sample_one(logits, replace(greedy, presence_penalty=0.2), prompt=(3,), output=(0,))[0] == 1
    assert sample_one(logits, replace(greedy, frequency_penalty=0.06), prompt=(3,), output=(0,))[0] == 0
    assert sample_one(logits, replace(greedy, frequency_penalty=0.06), prompt=(3,), output=(0, 0))[0] == 1


def test_a_repetition_penalty_multiplies_negative_logits() -> None:
    logits = torch.tensor([-1.0, -1.1])
    assert sample_one(logits, SamplingParams(temperature=0.0, repetition_penalty=1.2), prompt=(0,))[0] == 1


def test_logit_bias_adds_to_one_token() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0])
    assert sample_one(logits, SamplingParams(temperature=0.0, logit_bias={2: 3.0}))[0] == 2


def test_a_bias_on_many_tokens_is_written_as_quickly_as_on_two() -> None:
    """It needs the same number of operations; the biases are those of the mapping."""
    written = []
    for bias in ({3: 1.5, 4: -2.0}, {token: token / 2 - 7 for token in range(VOCAB)}):
        state = SamplingState.neutral(2, VOCAB, torch.device("cpu"))
        with Operations() as operations:
            state.enter(1, Request("r", (0,), SamplingParams(logit_bias=bias)))
        written.append(operations.count)
        assert state.bias.tolist() == [[0.0] * VOCAB, [bias.get(token, 0.0) for token in range(VOCAB)]]
    assert written[0] == written[1]


def test_min_tokens_masks_end_tokens_until_enough_are_sampled() -> None:
    logits = torch.tensor([5.0, 4.0, 3.0, 1.0])
    params = SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=(1,))
    assert [sample_one(logits, params, output=(3,) * n, eos=(0,))[0] for n in range(3)] == [2, 2, 0]


def test_logprobs_are_those_of_the_model_before_any_adjustment() -> None:
    logits = torch.randn(VOCAB)
    want = logits.log_softmax(0)
    params = SamplingParams(temperature=0.0, logit_bias={7: 100.0}, logprobs=5)
    token, logprob, ids, top = sample_one(logits, params)
    assert token == 7
    assert logprob == pytest.approx(float(want[7]), abs=1e-6)
    assert ids == want.topk(TOP).indices.tolist()
    assert top == pytest.approx(want.topk(TOP).values.tolist(), abs=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_give_the_bad_token_in_their_slot_only(bad: float) -> None:
    logits = torch.zeros(2, VOCAB)
    logits[0, 3] = bad
    (tokens,) = tiers.temperature(inputs(logits))
    assert tokens.tolist() == [BAD, 0]


def test_a_forced_token_is_taken_and_scored() -> None:
    logits = torch.randn(VOCAB)
    out = adjusted(inputs(logits[None], forced=torch.tensor([9])))
    assert out[0].item() == 9
    assert out[1].item() == pytest.approx(float(logits.log_softmax(0)[9]), abs=1e-6)


def masked(*tokens: int) -> bytes:
    """The bits of these tokens, in whole words."""
    return sum(1 << token for token in tokens).to_bytes(4 * -(-VOCAB // 32), "little")


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0)], ids=["greedy", "warm"])
@pytest.mark.parametrize("tier", [SamplerTier.GRAMMAR, SamplerTier.ADJUSTED, SamplerTier.TRUNCATED])
def test_a_grammar_leaves_the_top_token_of_those_it_allows(params: SamplingParams, tier: SamplerTier) -> None:
    logits, some = torch.randn(VOCAB), (3, 31, 32, 39)
    state = SamplingState.neutral(2, VOCAB, torch.device("cpu"))
    for slot in range(2):
        state.enter(slot, Request("r", (0,), replace(params, seed=1)))
    state.allow(0, masked(*some))
    zero = torch.zeros(2, dtype=torch.int64)
    sampled = SAMPLERS[tier](state.inputs(logits.repeat(2, 1), zero - 1, zero))[0].tolist()
    noise = gumbel(state.seed, zero, VOCAB)[0] * params.temperature
    assert sampled[0] == max(some, key=lambda token: float(logits[token] + noise[token]))
    assert sampled[1] == int((logits + noise).argmax())  # the neighbour has no grammar


def test_a_new_request_clears_the_grammar_of_its_slot() -> None:
    state = SamplingState.neutral(1, VOCAB, torch.device("cpu"))
    state.allow(0, masked(5))
    state.enter(0, Request("r", (0,), SamplingParams()))
    assert (state.allowed == -1).all()
