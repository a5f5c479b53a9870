"""Footprint: the bytes a model needs on each rank, and the slots that fit. Arithmetic alone.

token    layers x numbers of one token in one layer x bytes of a number
slot     entries x token; a layer with a sliding window has an entry for each of its tokens
staging  lanes x prompt tokens x token       dense keys and values of the prompts being prefilled
sampler  slots x vocabulary x bytes          logits, penalties and masks, and what one sampling step computes with
weights  parameters x bits / 8 / ranks
step     weights read + slots x entries x token      what a decode step must at least read
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from ringkv.base.cache_spec import PlaneFormat
from ringkv.base.errors import InvalidRequest
from ringkv.plan.shapes import Shape

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}


LOGITS, BIAS, IN_OUTPUT = 4, 4, 4  # bytes per slot and vocabulary entry: float32, float32, int32
IN_PROMPT, ENDS = 1, 1  # bool
ALLOWED = 1 / 8  # a bit
TEMPORARIES = 40
"""Bytes per slot and vocabulary entry that a sampling step computes with, in its most expensive graph.

That graph takes 36 if it runs eagerly: the int64 random numbers and their shifted copies, then the float32 planes.
`tests/engine/sampling/test_memory.py` measures it. Compiled graphs fuse some of this and take less.
"""


class Bits(NamedTuple):
    """Bits of one weight, its share of scales included: in layers, and in the embedding and vocabulary projection."""

    layers: int
    tables: int


QUANTISED: Mapping[str, Bits] = {
    "int8": Bits(8, 8),  # a scale an output is too little to count
    "int4": Bits(5, 8),  # a scale and a least value, of 16 bits each, for 32 weights
}


def item_bytes(dtype: str) -> int:
    """Bytes of one number. Raises `InvalidRequest` with the dtypes there are."""
    if dtype not in ITEM_BYTES:
        raise InvalidRequest(f"dtype is {dtype!r}; it must be one of {', '.join(ITEM_BYTES)}", "dtype")
    return ITEM_BYTES[dtype]


def token_bytes(shape: Shape, dtype: str, ranks: int = 1, format: PlaneFormat = "plain") -> int:
    """Bytes of one entry, keys and values, all layers, on one rank."""
    return shape.layers * shape.cache.on_rank(ranks).stored_as(format).bytes(item_bytes(dtype))


def sampler_bytes(vocab: int, drafts: int = 0) -> int:
    """Bytes that sampling one slot takes: what it holds for good, and the temporaries of a step; so for each draft."""
    slot = LOGITS + BIAS + IN_OUTPUT + IN_PROMPT + ENDS + ALLOWED + TEMPORARIES
    return ceil(vocab * (slot + drafts * (LOGITS + TEMPORARIES)))


def weight_bytes(shape: Shape, stored: str, ranks: int = 1) -> int:
    """Bytes of the weights on one rank, stored in a dtype or quantised.

    What ranks repeat (norms, heads fewer than ranks) and what is not quantised (norms, biases) is too little to count.
    """
    return _stored(shape.parameters, shape.vocabulary * (1 if shape.tied else 2), stored, ranks)


def read_bytes(shape: Shape, stored: str, ranks: int = 1) -> int:
    """Of these, the bytes that one token's step reads."""
    return _stored(shape.active, shape.vocabulary, stored, ranks)


def bits_of(stored: str) -> Bits:
    """Of weights stored in a dtype or quantised. Raises `InvalidRequest` where it is neither."""
    return QUANTISED.get(stored) or Bits(8 * item_bytes(stored), 8 * item_bytes(stored))


def _stored(parameters: int, tables: int, stored: str, ranks: int) -> int:
    bits = bits_of(stored)
    return ceil(((parameters - tables) * bits.layers + tables * bits.tables) / (8 * ranks))


@dataclass(frozen=True)
class Footprint:
    """Bytes that serving needs on one rank: fixed parts, and parts per slot."""

    slot: int
    weights: int
    staging: int
    reserve: int  # the interpreter, torch, graphs and activations
    store: int = 0  # what later prompts may begin with
    sampler: int = 0  # per slot

    @property
    def fixed(self) -> int:
        return self.weights + self.staging + self.reserve + self.store

    def held(self, slots: int) -> int:
        """Cache memory: never grows while serving."""
        return self.staging + self.store + slots * self.slot

    def total(self, slots: int) -> int:
        return self.fixed + slots * (self.slot + self.sampler)

    def slots_in(self, memory: int) -> int:
        """How many slots fit beside the fixed parts; 0 when those alone do not."""
        return max(0, memory - self.fixed) // (self.slot + self.sampler)
