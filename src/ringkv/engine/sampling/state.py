"""SamplingState: static tensors of each slot, filled when a request enters. SampledStep: what a step sampled.

B slots, V vocabulary, N drafts per slot, TOP top tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ringkv.base.engine import Run, Sampled
from ringkv.base.events import TokenLogprob
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.kernels.sampling.tiers import FREE, Inputs, params_of

WORD, ALL = 32, -1  # bits of a word of `allowed`, and the word that allows all


@dataclass(frozen=True)
class SamplingState:
    """The fields of `Inputs` that belong to requests, by the same names."""

    seed: Tensor  # int64 [B]
    temperature: Tensor  # float32 [B]
    tier: Tensor  # int32 [B]
    params: Tensor  # float32 [B, 8], see `params_of`
    allowed: Tensor  # int32 [B, ceil(V / 32)], a bit for each token
    bias: Tensor  # float32 [B, V]
    in_prompt: Tensor  # bool [B, V], of slots with a repetition penalty; undefined for others
    in_output: Tensor  # int32 [B, V]
    ends: Tensor  # bool [B, V]
    scored: Tensor  # bool [B]

    @classmethod
    def neutral(cls, slots: int, vocab: int, device: torch.device) -> "SamplingState":
        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            seed=zeros(slots, dtype=torch.int64),
            temperature=zeros(slots, dtype=torch.float32),
            tier=zeros(slots, dtype=torch.int32) + FREE,
            allowed=zeros(slots, -(-vocab // WORD), dtype=torch.int32) + ALL,
            params=torch.tensor([params_of(SamplingParams())], device=device).repeat(slots, 1),
            bias=zeros(slots, vocab, dtype=torch.float32),
            in_prompt=zeros(slots, vocab, dtype=torch.bool),
            in_output=zeros(slots, vocab, dtype=torch.int32),
            ends=zeros(slots, vocab, dtype=torch.bool),
            scored=zeros(slots, dtype=torch.bool),
        )

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in vars(self).values())

    def inputs(self, logits: Tensor, forced: Tensor, position: Tensor) -> Inputs:
        """Return the arguments of a sampling graph: the tensors of this state, and those of a step."""
        return Inputs(logits, forced, position, **vars(self))

    def enter(self, slot: int, request: Request) -> None:
        """Store a request's parameters, in place."""
        params, device = request.sampling, self.seed.device
        self.seed[slot] = (request.seed + 2**63) % 2**64 - 2**63  # any integer, wrapped to int64
        self.temperature[slot] = 0.0 if params.is_greedy else params.temperature
        self.tier[slot] = params.tier
        self.scored[slot] = params.logprobs is not None
        self.allowed[slot] = ALL
        self.params[slot] = torch.tensor(params_of(params), device=device)
        for plane in (self.bias, self.in_output, self.ends):
            plane[slot].zero_()
        if params.logit_bias:
            amounts = torch.tensor(list(params.logit_bias.values()), dtype=torch.float32, device=device)
            self.bias[slot, _ids(list(params.logit_bias), device)] = amounts
        if params.repetition_penalty != 1:
            self.in_prompt[slot].zero_()
            self.in_prompt[slot, _ids(request.tokens, device)] = True
        # A model's files may name an end token outside its vocabulary, which cannot be sampled.
        eos = [id for id in request.eos if id < self.ends.shape[1]]
        ends = [*params.stop_token_ids, *(() if params.ignore_eos else eos)]
        self.ends[slot, _ids(ends, device)] = True

    def leave(self, slot: int) -> None:
        """Free a slot, so that nothing is sampled or scored for it, in place."""
        self.tier[slot] = FREE
        self.scored[slot] = False

    def sampled(self, slot: int) -> dict[int, int]:
        """Return how often each sampled token was sampled."""
        tokens = self.in_output[slot].nonzero()[:, 0]
        return dict(zip(tokens.tolist(), self.in_output[slot, tokens].tolist(), strict=True))

    def allow(self, slot: int, tokens: bytes) -> None:
        """Set which tokens a grammar allows next, one bit each, in place."""
        self.allowed[slot] = torch.frombuffer(bytearray(tokens), dtype=torch.int32)

    def count(self, tokens: Tensor) -> None:
        """Count sampled tokens int64 [B, n]; a bad token is not counted. In place."""
        self.in_output.scatter_add_(1, tokens.clamp(min=0), (tokens >= 0).int())


@dataclass(frozen=True)
class SampledStep:
    """A sampling graph's outputs, still on the device."""

    tokens: Tensor  # int64 [B]
    wanted: Sequence[int | None]  # how many top tokens each slot reports
    scores: tuple[Tensor, ...]  # logprob [B], ids [B, TOP], logprobs [B, TOP]; none if no slot reports them
    more: tuple[Tensor, ...] = ()  # of tokens sampled after drafts, see `Drafts.settle`

    def read(self) -> Sequence[Run]:
        """Wait for the device, and copy the tokens, and the scores if a slot reports them."""
        has_scores = any(wanted is not None for wanted in self.wanted)
        scores = [score.tolist() for score in self.scores] if has_scores else []
        first = [
            _sampled(wanted, *row) for wanted, *row in zip(self.wanted, self.tokens.tolist(), *scores, strict=True)
        ]
        if not self.more:
            return [(sampled,) for sampled in first]
        then, kept, *scores = (tensor.tolist() for tensor in self.more)
        runs = []
        for sampled, wanted, count, *row in zip(first, self.wanted, kept, then, *scores, strict=True):
            ahead = zip(*(each[:count] for each in row), strict=True)
            runs.append((sampled, *(_sampled(wanted, *each) for each in ahead)))
        return runs


def _sampled(wanted: int | None, token: int, *score: Any) -> Sampled:
    """Return a token, with its log-probabilities if its slot reports them. score: of `SampledStep.scores`."""
    if token < 0:
        return Sampled(None, None)
    return Sampled(token, _logprob(wanted, *score) if score and wanted is not None else None)


def _logprob(wanted: int, logprob: float, ids: Sequence[int], top: Sequence[float]) -> TokenLogprob:
    return TokenLogprob(logprob, tuple(zip(ids[:wanted], top[:wanted], strict=True)))


def _ids(tokens: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(tokens, dtype=torch.int64, device=device)
