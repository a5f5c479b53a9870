"""What the sampling graphs know of each slot: static tensors, filled when a request enters.

B slots, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from secrets import randbits

import torch
from torch import Tensor

from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.engine.sampling.draw import knobs_of

WORD, ALL = 32, -1  # bits of a word of `allowed`, and the word that allows all


@dataclass(frozen=True)
class SamplingState:
    seed: Tensor  # int64 [B]
    temperature: Tensor  # float32 [B]
    allowed: Tensor  # int32 [B, ceil(V / 32)], a bit for each token
    knobs: Tensor  # float32 [B, 7]
    bias: Tensor  # float32 [B, V]
    in_prompt: Tensor  # bool [B, V]
    in_output: Tensor  # int32 [B, V]
    ends: Tensor  # bool [B, V]

    @classmethod
    def neutral(cls, slots: int, vocab: int, device: torch.device) -> "SamplingState":
        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        knobs = torch.tensor([knobs_of(SamplingParams())], device=device).repeat(slots, 1)
        return cls(
            seed=zeros(slots, dtype=torch.int64),
            temperature=zeros(slots, dtype=torch.float32),
            allowed=zeros(slots, -(-vocab // WORD), dtype=torch.int32) + ALL,
            knobs=knobs,
            bias=zeros(slots, vocab, dtype=torch.float32),
            in_prompt=zeros(slots, vocab, dtype=torch.bool),
            in_output=zeros(slots, vocab, dtype=torch.int32),
            ends=zeros(slots, vocab, dtype=torch.bool),
        )

    @property
    def more(self) -> tuple[Tensor, ...]:
        """What a plain draw does not read, in the order that the others take it."""
        return self.allowed, self.knobs, self.bias, self.in_prompt, self.in_output, self.ends

    def enter(self, slot: int, request: Request) -> None:
        """Take over a request's parameters; in place. Without a seed it gets one of its own."""
        params, device = request.sampling, self.seed.device
        self.seed[slot] = _wrapped(randbits(64) if params.seed is None else params.seed)
        self.temperature[slot] = params.temperature
        self.allowed[slot] = ALL
        self.knobs[slot] = torch.tensor(knobs_of(params), device=device)
        for plane in (self.bias, self.in_prompt, self.in_output, self.ends):
            plane[slot].zero_()
        for token, amount in params.logit_bias.items():
            self.bias[slot, token] = amount
        self.in_prompt[slot, torch.tensor(request.tokens, device=device)] = True
        ends = [*params.stop_token_ids, *(() if params.ignore_eos else request.eos)]
        self.ends[slot, torch.tensor(ends, dtype=torch.int64, device=device)] = True

    def sampled(self, slot: int) -> dict[int, int]:
        """How often each token was sampled, for those that were."""
        tokens = self.in_output[slot].nonzero()[:, 0]
        return dict(zip(tokens.tolist(), self.in_output[slot, tokens].tolist(), strict=True))

    def recount(self, slot: int, sampled: Mapping[int, int]) -> None:
        """Take over such counts; in place."""
        for token, count in sampled.items():
            self.in_output[slot, token] = count

    def allow(self, slot: int, tokens: bytes) -> None:
        """Only these may be drawn next, a bit each; in place."""
        self.allowed[slot] = torch.frombuffer(bytearray(tokens), dtype=torch.int32)

    def count(self, tokens: Tensor) -> None:
        """Remember what was drawn, int64 [B]; a bad token counts nothing. In place."""
        ones = (tokens >= 0).int()[:, None]
        self.in_output.scatter_add_(1, tokens.clamp(min=0)[:, None], ones)


def _wrapped(seed: int) -> int:
    """Any integer as int64."""
    return (seed + 2**63) % 2**64 - 2**63
