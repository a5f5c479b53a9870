"""Footprint: the bytes that a model needs on each rank, and the number of slots that fit. Arithmetic alone.

token    layers with a cache x elements of one token in one layer x bytes of an element
slot     entries x token in the slots' format, and what lies beside them; a layer with a sliding window has `window`
                                             entries
staging  staged tokens x token               dense keys and values of the prompts being prefilled, or of as much of them
                                             as fits a workspace; a layer with a sliding window has a window and a chunk
         lanes x window x queries            the last queries of each prompt
sampler  slots x vocabulary x bytes          logits, penalties, masks, and temporaries of one sampling step
weights  parameters x bits / 8 / ranks
step     weights read + slots x slot         the least bytes that a decode step reads; of a mixture of experts, those
                                             that so many tokens choose (`distinct_share`)
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import NamedTuple

from ringkv.base.cache_spec import LayerGroup
from ringkv.base.errors import InvalidRequest
from ringkv.plan.shapes import Shape

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}


LOGITS, BIAS, IN_OUTPUT = 4, 4, 4  # bytes per slot and vocabulary entry: float32, float32, int32
IN_PROMPT, ENDS = 1, 1  # bool
ALLOWED = 1 / 8  # a bit
TEMPORARIES = 40
"""Temporary bytes per slot and vocabulary entry in a sampling step, for its most expensive graph.

That graph takes 36 if it runs eagerly: the int64 random numbers and their shifted copies, then the float32 planes.
`tests/engine/sampling/test_memory.py` measures it. Compiled graphs fuse some of this and take less.
"""


class Bits(NamedTuple):
    """Bits of one weight, including its share of the scales.

    layers: of the matrices in layers. tables: of the embedding and the vocabulary projection.
    """

    layers: int
    tables: int


SERVED: Mapping[str, Bits] = {  # what `ringkv serve --weights` takes
    "bf16": Bits(16, 16),
    "int8": Bits(8, 8),  # one scale per output channel is too little to count
    "int4": Bits(5, 8),  # a 16-bit scale and a 16-bit minimum for each 32 weights
}
GROUPS_OF_BYTES, GROUPS_WITH_MINIMUMS = "int8 in groups", "int8 in groups with minimums"
IN_GROUPS: Mapping[str, Bits] = {GROUPS_OF_BYTES: Bits(9, 8), GROUPS_WITH_MINIMUMS: Bits(10, 8)}
"""What `--weights int8` keeps of a checkpoint in 5 to 8 bits: 32 or 64 bits for each 32 integers."""


def item_bytes(dtype: str) -> int:
    """Bytes of one element. Raises `InvalidRequest` with the known dtypes."""
    if dtype not in ITEM_BYTES:
        raise InvalidRequest(f"dtype is {dtype!r}; it must be one of {', '.join(ITEM_BYTES)}", "dtype")
    return ITEM_BYTES[dtype]


def token_bytes(shape: Shape, dtype: str, ranks: int = 1) -> int:
    """Bytes of one token's keys and values in format plain, all layers, on one rank."""
    item = item_bytes(dtype)
    return sum(len(group.layers) * group.spec.on_rank(ranks).bytes(item) for group in shape.groups)


class StagedPrompts(NamedTuple):
    """What an engine stages. tokens: of all lanes. window: last queries of each lane.

    compacts: whether a prompt may be longer than its lane.
    """

    tokens: int
    lanes: int
    chunk: int
    window: int
    compacts: bool = False


def staging_bytes(shape: Shape, staged: StagedPrompts, dtype: str, ranks: int = 1) -> int:
    """Bytes of staging on one rank: keys and values (see `LayerGroup.staged_entries`), queries, and places."""
    item, groups = item_bytes(dtype), [group.on_rank(ranks) for group in shape.groups]
    entries = [(group, group.staged_entries(staged.tokens, staged.lanes, staged.chunk)) for group in groups]
    planes = sum(count * len(group.layers) * group.spec.bytes(item) for group, count in entries)
    queries = staged.lanes * staged.window * item * _query_elements(groups, shape.kv_source)
    return planes + queries + (_place_bytes(groups, staged.tokens) if staged.compacts else 0)


def _query_elements(groups: Sequence[LayerGroup], kv_source: Sequence[int]) -> int:
    """Return the elements of a token's queries, in all layers that read the caches of these groups."""
    of_layer = {layer: group.spec.key.elements * group.queries for group in groups for layer in group.layers}
    return sum(of_layer[source] for source in kv_source)


def _place_bytes(groups: Iterable[LayerGroup], tokens: int) -> int:
    """Return the bytes that note which token each staged entry holds, int32 by layer and head."""
    return 4 * tokens * sum(len(group.layers) * group.spec.key.heads for group in groups if group.window is None)


def slot_bytes(shape: Shape, entries: int, dtype: str, ranks: int = 1) -> int:
    """Bytes of one slot in memory, all layers, on one rank; see `LayerGroup.slot_bytes`."""
    return sum(group.slot_bytes(entries, item_bytes(dtype)) for group in _slots(shape, ranks))


def file_bytes(shape: Shape, entries: int, dtype: str, ranks: int = 1) -> int:
    """Bytes of one slot in files, all layers, on one rank."""
    return sum(group.file_bytes(entries, item_bytes(dtype)) for group in _slots(shape, ranks))


def host_bytes(shape: Shape, entries: int, dtype: str, ranks: int = 1) -> int:
    """Bytes of one slot in the host's memory beside a GPU, all layers, on one rank."""
    return sum(group.host_bytes(entries, item_bytes(dtype)) for group in _slots(shape, ranks))


def step_bytes(shape: Shape, entries: int, read: int, dtype: str, ranks: int = 1) -> int:
    """Bytes that a decode step reads of a full slot on one rank; see `LayerGroup.step_bytes`."""
    return sum(group.step_bytes(entries, read, item_bytes(dtype)) for group in _slots(shape, ranks))


def _slots(shape: Shape, ranks: int) -> Iterator[LayerGroup]:
    """Yield the groups on one rank, in the format of their slots."""
    return (group.on_rank(ranks).in_slots for group in shape.groups)


def window_bytes(shape: Shape, dtype: str, ranks: int = 1) -> int:
    """Bytes that layers with a sliding window take of a slot, whatever its budget."""
    local = tuple(group for group in shape.groups if group.window is not None)
    return slot_bytes(replace(shape, groups=local), 0, dtype, ranks)


def sampler_bytes(vocab: int, drafts: int = 0) -> int:
    """Bytes to sample one slot: its state and the temporaries of a step. Each draft adds logits and temporaries."""
    slot = LOGITS + BIAS + IN_OUTPUT + IN_PROMPT + ENDS + ALLOWED + TEMPORARIES
    return ceil(vocab * (slot + drafts * (LOGITS + TEMPORARIES)))


def weight_bytes(shape: Shape, stored: str, ranks: int = 1) -> int:
    """Bytes of the weights on one rank, stored in a dtype or quantised.

    Weights that every rank repeats (norms, key-value heads fewer than ranks) and weights that are not quantised (norms,
    biases) are too small to count.
    """
    return _stored(shape.parameters, shape.vocabulary + shape.looked_up, stored, ranks)


def read_bytes(shape: Shape, stored: str, ranks: int = 1, tokens: int = 1) -> int:
    """Bytes of the weights that a decode step of so many tokens reads, on one rank: of experts, the chosen ones."""
    return _stored(shape.active + _further_experts(shape, tokens), shape.vocabulary, stored, ranks)


def _further_experts(shape: Shape, tokens: int) -> float:
    """Return the expected elements of experts that the tokens after the first choose beside those of the first."""
    if shape.experts is None or tokens == 1:
        return 0
    first, every = (distinct_share(shape.experts.chosen, shape.experts.count, rows) for rows in (1, tokens))
    return shape.experts.elements * (every - first)


def distinct_share(chosen: int, count: int, tokens: int) -> float:
    """Return the expected share of a layer's experts that so many tokens choose together.

    All experts are equally likely and tokens choose independently, so a token leaves an expert out with probability
    1 - chosen / count, and n tokens do with its n-th power. One token reads `chosen` experts, many read all.
    """
    missed: float = (1 - chosen / count) ** tokens
    return 1 - missed


def bits_of(stored: str) -> Bits:
    """Bits of weights stored in a dtype or quantised. Raises `InvalidRequest` if `stored` is neither."""
    quantised = {**SERVED, **IN_GROUPS}
    if stored not in (*quantised, *ITEM_BYTES):
        known = ", ".join((*SERVED, *ITEM_BYTES))
        raise InvalidRequest(f"weights is {stored!r}; it must be one of {known}", "weights")
    return quantised.get(stored) or Bits(8 * item_bytes(stored), 8 * item_bytes(stored))


def _stored(parameters: float, tables: int, stored: str, ranks: int) -> int:
    bits = bits_of(stored)
    return ceil(((parameters - tables) * bits.layers + tables * bits.tables) / (8 * ranks))


@dataclass(frozen=True)
class Footprint:
    """Bytes that serving needs on one rank: fixed parts and parts per slot.

    slot, sampler: per slot. host: per slot, in the host's memory beside a GPU; not in the sums here.
    slot_ranks: ranks that divide the slots. One of them has a slot's entries; each has the sampling state of all slots.
    """

    slot: int
    weights: int
    staging: int
    reserve: int  # the interpreter, torch, graphs and activations
    store: int = 0  # the prefix store
    sampler: int = 0  # per slot
    slot_ranks: int = 1
    host: int = 0

    def times(self, ranks: int) -> "Footprint":
        """Return the bytes of so many ranks."""
        sizes = (field.name for field in fields(self) if field.name != "slot_ranks")
        return replace(self, **{name: ranks * getattr(self, name) for name in sizes})

    def __add__(self, other: "Footprint") -> "Footprint":
        """Return the bytes of two engines in one process."""
        sums = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        return replace(self, **sums | {"reserve": self.reserve, "slot_ranks": self.slot_ranks})

    @property
    def fixed(self) -> int:
        return self.weights + self.staging + self.reserve + self.store

    def held(self, slots: int) -> int:
        """Bytes of cache memory, which never grows while serving."""
        return self.staging + self.store + self.entries(slots)

    def entries(self, slots: int) -> int:
        """Bytes of the entries of slots; of as many on each rank, if ranks divide them."""
        return ceil(slots / self.slot_ranks) * self.slot

    def total(self, slots: int) -> int:
        return self.fixed + self.entries(slots) + slots * self.sampler

    def slots_in(self, memory: int) -> int:
        """How many slots fit beside the fixed parts; 0 if the fixed parts alone do not fit."""
        each = max(0, memory - self.fixed) // (self.slot + self.slot_ranks * self.sampler)
        return each * self.slot_ranks
