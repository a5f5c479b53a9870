"""Programs: every graph an engine replays, made once for its fixed shapes.

B slots, V vocabulary. Which graphs there are: one decoder layer for each prefill size and one for the decode step
(replayed L times; weights and caches are arguments), the head, and the ways to sample.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ringkv.base.sampling import SamplerTier
from ringkv.engine import functions
from ringkv.engine.load import ModelWeights
from ringkv.engine.sampling import sample
from ringkv.engine.sampling.state import SamplingState
from ringkv.engine.staging import Staging
from ringkv.graphs.graph import Backend, Eager, Graph
from ringkv.models.decoder import Decoder

SMALL = 64  # the size for the ends of prompts; a multiple of it must make up a chunk


@dataclass(frozen=True)
class Programs:
    backend: Backend
    prefill: Mapping[int, Graph]  # by tokens per piece
    decode: Graph
    head: Graph  # all slots
    head_of_one: Graph  # a prompt's last token; eager, as it runs once a request
    sampling: Mapping[SamplerTier, Graph]

    def pieces(self, start: int, stop: int, room: int) -> Iterator[tuple[int, int]]:
        """Cover entries start .. stop-1 with (start, size) pieces: large ones, and small ones for a short rest.

        Small ones too where a large one would pass the lane's `room`.
        """
        small, large = min(self.prefill), max(self.prefill)
        while start < stop:
            size = large if stop - start > large // 2 and start + large <= room else small
            yield start, size
            start += size


def sizes(chunk: int) -> tuple[int, ...]:
    """The prefill sizes for a chunk."""
    return tuple(sorted({SMALL, chunk})) if chunk % SMALL == 0 else (chunk,)


def make(
    backend: Backend,
    decoder: Decoder,
    weights: ModelWeights,
    staging: Staging,
    planes: tuple[Tensor, Tensor],
    slots: int,
    chunk: int,
) -> Programs:
    """Build all graphs; the example arguments are the real weights and caches, which are not run and not copied."""
    first, names = weights.layers[0], tuple(weights.layers[0])
    shared = list(weights.shared.values())
    device = planes[0].device

    def rows(n: int) -> list[Tensor]:
        x = torch.zeros(n, decoder.config.hidden_size, dtype=decoder.dtype, device=device)
        return [x, *decoder.rotation(torch.zeros(n, dtype=torch.int64, device=device))]

    def prefill(size: int) -> Graph:
        lane = [plane[0, 0] for plane in (staging.keys, staging.values, staging.window)]
        example = [*rows(size), torch.zeros(2, dtype=torch.int64), *lane, *first.values()]
        return backend.make(f"prefill-{size}", functions.prefill_layer(decoder, names), example)

    numbers = [torch.zeros(slots, dtype=torch.int32, device=device) for _ in range(2)]
    step = [*rows(slots), *numbers, planes[0][0], planes[1][0], *first.values()]
    head = functions.head(decoder, tuple(weights.shared))
    inputs = list(_sampler_inputs(slots, decoder.config.vocab_size, device))
    return Programs(
        backend=backend,
        prefill={size: prefill(size) for size in sizes(chunk)},
        decode=backend.make(f"decode-{slots}", functions.decode_layer(decoder, names), step),
        head=backend.make(f"head-{slots}", head, [step[0], *shared]),
        head_of_one=Eager().make("head-1", head, []),
        sampling={
            tier: backend.make(f"sample-{tier.name.lower()}", sample.graph(tier), inputs) for tier in SamplerTier
        },
    )


def _sampler_inputs(slots: int, vocab: int, device: torch.device) -> sample.Inputs:
    position, forced = (torch.zeros(slots, dtype=torch.int64, device=device) for _ in range(2))
    logits = torch.zeros(slots, vocab, device=device)
    return SamplingState.neutral(slots, vocab, device).inputs(logits, forced, position)


def count(chunk: int) -> int:
    """How many graphs `make` asks its backend for."""
    return len(sizes(chunk)) + len(SamplerTier) + 2
