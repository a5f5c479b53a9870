"""Programs: every graph an engine replays, made once for its fixed shapes.

B slots, V vocabulary. Which graphs there are: one decoder layer for each prefill size and one for the decode step
(replayed L times; weights and caches are arguments), the head, and the ways to sample.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ringkv.base.sampling import Effort
from ringkv.cache.body import Body
from ringkv.engine import functions
from ringkv.engine.load import ModelWeights
from ringkv.engine.sampling import draw
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
    prefill: Mapping[int, Graph]  # by tokens per piece
    decode: Mapping[int, Graph]  # by rows of a step
    head: Mapping[int, Graph]
    head_of_one: Graph  # a prompt's last token; eager, as it runs once a request
    sampling: Mapping[Effort, Graph]

    def pieces(self, start: int, stop: int, room: int) -> Iterator[tuple[int, int]]:
        """Cover entries start .. stop-1 with (start, size) pieces: large ones, and small ones for a short rest.

        Small ones too where a large one would pass the lane's `room`.
        """
        small, large = min(self.prefill), max(self.prefill)
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
    first, names = weights.layers[0], tuple(weights.layers[0])
    shared = list(weights.shared.values())
    slots, device = bodies[0].rows, staging.queries[0].device

    def rows(n: int) -> list[Tensor]:
        x = torch.zeros(n, decoder.config.hidden_size, dtype=decoder.dtype, device=device)
        return [x, *decoder.rotation(torch.zeros(n, dtype=torch.int64, device=device))]

    def prefill(size: int) -> Graph:
        lane = [plane[0] for plane in (*staging.bodies[0].layer(0), staging.queries[0][0])]
        example = [*rows(size), torch.zeros(2, dtype=torch.int64), *lane, *first.values()]
        return backend.make(f"prefill-{size}", functions.prefill_layer(decoder, names), example)

    def decode(size: int) -> Graph:
        numbers = [torch.zeros(size, dtype=torch.int32, device=device) for _ in range(3)]
        step = [*rows(size), *numbers, *bodies[0].layer(0), *first.values()]
        return backend.make(f"decode-{size}", functions.decode_layer(decoder, names), step)

    decoding = decode_sizes(slots, weights)
    head = functions.head(decoder, tuple(weights.shared))
    drawing = _drawing(slots, decoder.config.vocab_size, device)
    return Programs(
        backend=backend,
        prefill={size: prefill(size) for size in sizes(chunk)},
        decode={size: decode(size) for size in decoding},
        head={size: backend.make(f"head-{size}", head, [rows(size)[0], *shared]) for size in decoding},
        head_of_one=Eager().make("head-1", head, []),
        sampling={
            effort: backend.make(f"sample-{effort.name.lower()}", function, drawing[: draw.ARITY[effort]])
            for effort, function in draw.GRAPHS.items()
        },
    )


def _drawing(slots: int, vocab: int, device: torch.device) -> list[Tensor]:
    state = SamplingState.neutral(slots, vocab, device)
    position, forced = (torch.zeros(slots, dtype=torch.int64, device=device) for _ in range(2))
    logits = torch.zeros(slots, vocab, device=device)
    return [logits, forced, state.seed, position, state.temperature, *state.more]


def count(chunk: int, slots: int, weights: ModelWeights) -> int:
    """How many graphs `make` asks its backend for."""
    return len(sizes(chunk)) + len(draw.GRAPHS) + 2 * len(decode_sizes(slots, weights))
