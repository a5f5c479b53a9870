"""Programs: every graph an engine replays, made once for its fixed shapes.

B slots, V vocabulary. Which graphs there are: for each kind of layer one for each prefill size and one for the decode
step (replayed for every layer of the kind; weights and caches are arguments), the head, and the ways to sample.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.cache_spec import places
from ringkv.base.sampling import SamplerTier
from ringkv.cache.body import Body
from ringkv.engine import functions
from ringkv.engine.load import ModelWeights
from ringkv.engine.sampling import sample
from ringkv.engine.sampling.state import SamplingState
from ringkv.engine.staging import Staging
from ringkv.graphs.graph import Backend, Eager, Graph
from ringkv.kernels.library import is_native
from ringkv.models.decoder import Decoder

DECODE = (1, 4, 8, 16, 32, 64, 128)
FEW = 8  # rows that kernels/cpu/linear.cpp multiplies with four-bit weights as they are
SMALL = 64  # the size for the ends of prompts; a multiple of it must make up a chunk


@dataclass(frozen=True)
class Programs:
    backend: Backend
    sizes: tuple[int, ...]  # tokens per piece
    prefill: Mapping[str, Mapping[int, Graph]]  # by kind of layer, by tokens per piece
    decode: Mapping[int, Mapping[str, Graph]]  # by rows of a step, by kind of layer
    head: Mapping[int, Graph]  # by rows of a step
    head_of_one: Graph  # a prompt's last token; eager, as it runs once a request
    sampling: Mapping[SamplerTier, Graph]

    @property
    def smallest(self) -> int:
        """Rows of the smallest prefill graphs."""
        return min(self.sizes)

    def pieces(self, start: int, stop: int, room: int) -> Iterator[tuple[int, int]]:
        """Cover entries start .. stop-1 with (start, size) pieces: large ones, and small ones for a short rest.

        Small ones too where a large one would pass the lane's `room`.
        """
        small, large = self.smallest, max(self.sizes)
        while start < stop:
            size = large if stop - start > large // 2 and start + large <= room else small
            yield start, size
            start += size

    def rows(self, running: int) -> int:
        """Rows of the smallest step that takes so many slots."""
        return min(size for size in self.decode if size >= running)


def sizes(chunk: int) -> tuple[int, ...]:
    """The prefill sizes for a chunk."""
    return tuple(sorted({SMALL, chunk})) if chunk % SMALL == 0 else (chunk,)


def decode_sizes(slots: int, weights: ModelWeights) -> tuple[int, ...]:
    """Rows of decode steps: few while few slots run.

    A request's tokens must not depend on its neighbours, so these are only sizes whose products round a row alike: one
    alone unless our own kernels multiply all matrices.
    """
    if not (weights.is_packed and is_native("linear")):
        return (slots,)
    smaller = (size for size in DECODE if size < slots)
    if weights.is_packed_in(torch.uint8):  # four bits, which few rows do not widen
        smaller = (size for size in smaller if (size <= FEW) == (slots <= FEW))
    return (*smaller, slots)


def make(
    backend: Backend,
    decoder: Decoder,
    weights: ModelWeights,
    staging: Staging,
    bodies: Sequence[Body],
    chunk: int,
) -> Programs:
    """Build all graphs; the example arguments are the real weights and caches, which are not run and not copied."""
    shared = list(weights.shared.values())
    slots, device = bodies[0].rows, staging.queries[0].device
    first = {kind: _First.of(kind, decoder, weights) for kind in decoder.layers}

    def rows(kind: str, n: int) -> list[Tensor]:
        x = torch.zeros(n, decoder.config.hidden_size, dtype=decoder.dtype, device=device)
        return [x, *decoder.rotation(kind, torch.zeros(n, dtype=torch.int64, device=device))]

    def prefill(kind: str, size: int) -> Graph:
        group, row, layer = first[kind]
        lane = [plane[0] for plane in (*staging.bodies[group].layer(row), staging.queries[group][row])]
        example = [*rows(kind, size), torch.zeros(2, dtype=torch.int64), *lane, *layer.values()]
        return backend.make(f"prefill-{kind}-{size}", functions.prefill_layer(decoder, kind, tuple(layer)), example)

    def decode(kind: str, size: int) -> Graph:
        group, row, layer = first[kind]
        numbers = [torch.zeros(size, dtype=torch.int32, device=device) for _ in range(3)]
        example = [*rows(kind, size), *numbers, *bodies[group].layer(row), *layer.values()]
        return backend.make(f"decode-{kind}-{size}", functions.decode_layer(decoder, kind, tuple(layer)), example)

    def head(size: int) -> Graph:
        x = torch.zeros(size, decoder.config.hidden_size, dtype=decoder.dtype, device=device)
        return backend.make(f"head-{size}", head_function, [x, *shared])

    decoding = decode_sizes(slots, weights)
    head_function = functions.head(decoder, tuple(weights.shared))
    inputs = list(_sampler_inputs(slots, decoder.config.vocab_size, device))
    return Programs(
        backend=backend,
        sizes=sizes(chunk),
        prefill={kind: {size: prefill(kind, size) for size in sizes(chunk)} for kind in decoder.layers},
        decode={size: {kind: decode(kind, size) for kind in decoder.layers} for size in decoding},
        head={size: head(size) for size in decoding},
        head_of_one=Eager().make("head-1", head_function, []),
        sampling={
            tier: backend.make(f"sample-{tier.name.lower()}", sample.graph(tier), inputs) for tier in SamplerTier
        },
    )


class _First(NamedTuple):
    """The first layer of a kind, by whose weights and caches the kind's graphs are made."""

    group: int
    row: int
    weights: dict[str, Tensor]

    @classmethod
    def of(cls, kind: str, decoder: Decoder, weights: ModelWeights) -> "_First":
        index = decoder.kinds.index(kind)
        return cls(*places(decoder.groups)[index], weights.layers[index])


def _sampler_inputs(slots: int, vocab: int, device: torch.device) -> sample.Inputs:
    position, forced = (torch.zeros(slots, dtype=torch.int64, device=device) for _ in range(2))
    logits = torch.zeros(slots, vocab, device=device)
    return SamplingState.neutral(slots, vocab, device).inputs(logits, forced, position)


def count(chunk: int, slots: int, kinds: int, weights: ModelWeights) -> int:
    """How many graphs `make` builds for a model with so many kinds of layers."""
    rows = len(decode_sizes(slots, weights))
    return kinds * (len(sizes(chunk)) + rows) + len(SamplerTier) + rows
