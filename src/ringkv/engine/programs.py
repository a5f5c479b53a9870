"""Programs: every graph an engine replays, made once for its fixed shapes.

B slots, V vocabulary. Each kind of layer has one graph per prefill size and one per size of a decode step. They are
replayed for every layer of the kind; weights and caches are arguments. The head and the samplers have graphs too.
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
from ringkv.engine.sampling.graphs import draft_samplers, is_compiled, samplers
from ringkv.engine.staging import Staging
from ringkv.graphs.graph import Backend, Eager, Graph
from ringkv.kernels.library import is_native
from ringkv.kernels.sampling.tiers import DRAFT_TIERS
from ringkv.models.decoder import Decoder

DECODE = (1, 4, 8, 16, 32, 64, 128)
FEW = 8  # rows up to which kernels/cpu/linear.cpp does not widen four-bit weights
MOST_WITH_DRAFTS = 32  # tokens of a step; with more, multiplying takes longer than reading the weights
SMALL = 64  # the size for the ends of prompts on a CPU; a chunk must be a multiple of it
SMALLEST_ON_GPU = 128  # fewer tokens take as long, because reading the weights bounds the time


@dataclass(frozen=True)
class Programs:
    backend: Backend
    sizes: tuple[int, ...]  # tokens per piece
    drafted: int  # tokens that a step may have beside a slot's sampled one
    prefill: Mapping[str, Mapping[int, Graph]]  # by kind of layer, by tokens per piece
    decode: Mapping[int, Mapping[str, Graph]]  # by rows of a step, by kind of layer
    drafts: Mapping[int, Mapping[str, Graph]]  # the same for steps with drafts; none if nothing is drafted
    head: Mapping[int, Graph]  # by tokens of a step
    head_of_one: Graph  # a prompt's last token; eager, as it runs once a request
    sampling: Mapping[SamplerTier, Graph]
    sampling_drafts: Mapping[SamplerTier, Graph]  # for all drafts of all slots; only the tiers that drafts may have

    @property
    def smallest(self) -> int:
        """Rows of the smallest prefill graphs."""
        return min(self.sizes)

    def pieces(self, start: int, stop: int, room: int) -> Iterator[tuple[int, int]]:
        """Cover entries start .. stop-1 with (start, size) pieces: the largest size of which more than half is needed.

        A piece is smaller if it would pass the lane's `room`.
        """
        while start < stop:
            fitting = (size for size in self.sizes if size < 2 * (stop - start) and start + size <= room)
            size = max(fitting, default=self.smallest)
            yield start, size
            start += size

    def rows(self, running: int) -> int:
        """Return the rows of the smallest step for so many running slots."""
        return min(size for size in self.decode if size >= running)

    def rows_with_drafts(self, running: int) -> int | None:
        """Return the rows of the smallest step with drafts; None if there is no such step."""
        return min((size for size in self.drafts if size >= running), default=None)


def sizes(chunk: int, device: torch.device) -> tuple[int, ...]:
    """Return the prefill sizes for a chunk: two on a CPU; on a GPU its halves, so that a prompt's end is one piece."""
    if device.type == "cuda":
        return _halves(chunk)
    return tuple(sorted({SMALL, chunk})) if chunk % SMALL == 0 else (chunk,)


def _halves(chunk: int) -> tuple[int, ...]:
    """Return a chunk and its halves down to SMALLEST_ON_GPU, the smallest first."""
    is_whole = chunk % 2 == 0 and chunk // 2 >= SMALLEST_ON_GPU
    return (*_halves(chunk // 2), chunk) if is_whole else (chunk,)


def decode_sizes(slots: int, weights: ModelWeights) -> tuple[int, ...]:
    """Return the rows of decode steps, so that few running slots take few rows.

    A request's tokens must not depend on its neighbours, so all sizes must round a row alike. Only our own kernels
    promise that; with others there is one size.
    """
    if not (weights.is_packed and is_native("linear")):
        return (slots,)
    smaller = (size for size in DECODE if size < slots)
    if weights.is_packed_in(torch.uint8):  # four bits, which few rows do not widen
        smaller = (size for size in smaller if (size <= FEW) == (slots <= FEW))
    return (*smaller, slots)


def draft_sizes(slots: int, weights: ModelWeights, drafts: int) -> tuple[int, ...]:
    """Return the rows of decode steps that may have `drafts` per row.

    A step with drafts must not change a token, so its products must round as without drafts. Steps with more tokens
    than MOST_WITH_DRAFTS are left out.
    """
    sizes = decode_sizes(slots, weights) if drafts else ()
    sizes = tuple(size for size in sizes if size * (1 + drafts) <= MOST_WITH_DRAFTS)
    if weights.is_packed_in(torch.uint8):
        return tuple(size for size in sizes if (size * (1 + drafts) <= FEW) == (size <= FEW))
    return sizes


def make(
    backend: Backend,
    decoder: Decoder,
    weights: ModelWeights,
    staging: Staging,
    bodies: Sequence[Body],
    chunk: int,
    drafts: int = 0,
) -> Programs:
    """Build all graphs. The example arguments are the real weights and caches, which are neither run nor copied."""
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

    def decode(kind: str, size: int, tokens: int = 1) -> Graph:
        group, row, layer = first[kind]
        format = bodies[group].group.spec.key.format
        shapes = [(size,), *[(size,) if tokens == 1 else (size, tokens)] * 2]
        numbers = [torch.zeros(shape, dtype=torch.int32, device=device) for shape in shapes]
        example = [*rows(kind, size * tokens), *numbers, *bodies[group].layer(row), *layer.values()]
        name = f"decode-{kind}-{size}" if tokens == 1 else f"decode-{kind}-{size}x{tokens}"
        return backend.make(name, functions.decode_layer(decoder, kind, tuple(layer), format, tokens), example)

    def head(size: int) -> Graph:
        x = torch.zeros(size, decoder.config.hidden_size, dtype=decoder.dtype, device=device)
        return backend.make(f"head-{size}", head_function, [x, *shared])

    pieces, decoding = sizes(chunk, device), decode_sizes(slots, weights)
    drafting, tokens = draft_sizes(slots, weights, drafts), 1 + drafts
    head_function = functions.head(decoder, tuple(weights.shared))
    vocab = decoder.config.vocab_size
    return Programs(
        backend=backend,
        sizes=pieces,
        drafted=drafts if drafting else 0,
        prefill={kind: {size: prefill(kind, size) for size in pieces} for kind in decoder.layers},
        decode={size: {kind: decode(kind, size) for kind in decoder.layers} for size in decoding},
        drafts={size: {kind: decode(kind, size, tokens) for kind in decoder.layers} for size in drafting},
        head={size: head(size) for size in _heads(decoding, drafting, tokens)},
        head_of_one=Eager().make("head-1", head_function, []),
        sampling=samplers(backend, slots, vocab, device),
        sampling_drafts=draft_samplers(backend, slots * drafts, vocab, device) if drafting else {},
    )


def _heads(decoding: Sequence[int], drafting: Sequence[int], tokens: int) -> list[int]:
    """Return the tokens of all steps."""
    return sorted({*decoding, *(size * tokens for size in drafting)})


class _First(NamedTuple):
    """The first layer of a kind. Its weights and caches are the example arguments of the kind's graphs."""

    group: int
    row: int
    weights: dict[str, Tensor]

    @classmethod
    def of(cls, kind: str, decoder: Decoder, weights: ModelWeights) -> "_First":
        index = decoder.kinds.index(kind)
        return cls(*places(decoder.groups)[index], weights.layers[index])


def count(chunk: int, device: torch.device, slots: int, kinds: int, weights: ModelWeights, drafts: int = 0) -> int:
    """Return how many graphs `make` builds for a model with so many kinds of layers."""
    decoding, drafting = decode_sizes(slots, weights), draft_sizes(slots, weights, drafts)
    layers = kinds * (len(sizes(chunk, device)) + len(decoding) + len(drafting))
    sampling = len(SamplerTier) + (len(DRAFT_TIERS) if drafting else 0) if is_compiled(device) else 0
    return layers + sampling + len(_heads(decoding, drafting, 1 + drafts))
