"""ModelConfig: the configuration that all families share. No torch."""

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from ringkv.base.cache_spec import PLAIN_SLOTS, LayerGroup, SlotFormat, in_formats, places
from ringkv.base.ranks import ONE_RANK, AttentionParallel, Exchange, Rank
from ringkv.models.altup import Streams
from ringkv.models.layer import Layer, Norm, RopeConfig
from ringkv.models.online import NONE, OnlineRotations, rotating
from ringkv.models.per_layer_inputs import PerLayerInputs
from ringkv.models.ranks import check_ranks, has_latents
from ringkv.models.weights import CheckpointTensor, Declared, Weight, vector

GLOBAL, LOCAL = "global", "local"
"""Kinds of layers: global ones attend to all tokens, local ones have a sliding window."""

SHARED = "-shared"  # ends the name of a kind of layer that reads an earlier layer's cache


class Place(NamedTuple):
    """Where a layer's cache is: the group, its row in the group's planes, and which of the group's readers it is."""

    group: int
    row: int
    reader: int


@dataclass(frozen=True)
class Sliding:
    """Layers that attend to the last `window` tokens only, including the current one."""

    window: int
    layers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ABC):
    """The configuration of one decoder. A family adds its own fields and describes its layers."""

    architecture: str  # as config.json's "architectures"[0], e.g. "LlamaForCausalLM"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    context: int  # max_position_embeddings
    tied_embeddings: bool
    eos_ids: tuple[int, ...]
    bos_id: int | None
    sliding: Sliding | None = None
    prefix: str = ""  # before every name in the checkpoint
    body: str = "model"  # the module of embedding, layers and final norm
    unused: tuple[str, ...] = ()  # patterns of checkpoint tensors that this model does not use
    rank: Rank = ONE_RANK  # whose part `computed` and `groups` describe; all else describes the whole model
    exchange: Exchange = "none"
    attention_parallel: AttentionParallel = "heads"
    slots: SlotFormat = PLAIN_SLOTS
    online: OnlineRotations = NONE

    @abstractmethod
    def layer(self, kind: str) -> Layer:
        """Describe the layers of a kind."""

    def of_rank(self, rank: Rank, exchange: Exchange, parallel: AttentionParallel = "heads") -> Self:
        """Return the configuration of a rank. Raises InvalidRequest if the model cannot be divided like this."""
        if rank.count > 1:
            check_ranks({kind: rotating(self.layer(kind), self.online) for kind in self.kinds}, rank, parallel)
        return replace(self, rank=rank, exchange=exchange, attention_parallel=parallel)

    @property
    def has_latents(self) -> bool:
        """Whether all layers have latent attention, so that ranks can divide the slots."""
        return has_latents([self.layer(kind) for kind in set(self.kinds)])

    @property
    def slot_share(self) -> Rank:
        """The rank, if ranks divide the slots; else one that has all slots."""
        return self.rank if self.attention_parallel == "slots" else ONE_RANK

    def with_slots(self, slots: SlotFormat) -> Self:
        """Return the configuration with slots in a format."""
        return replace(self, slots=slots)

    def computed(self, kind: str) -> Layer:
        """Describe what the rank computes of the layers of a kind."""
        layer = rotating(self.layer(kind), self.online)
        return layer if self.rank.count == 1 else layer.of_rank(self.rank, self.exchange, self.attention_parallel)

    @property
    def vocab_spans(self) -> tuple[range, ...]:
        """The rows of the vocabulary that each rank has."""
        return tuple(Rank(index, self.rank.count).elements(self.vocab_size) for index in range(self.rank.count))

    @property
    def norm(self) -> Norm:
        """The norm before the vocabulary projection."""
        return Norm(self.rms_norm_eps)

    @property
    def embed_scale(self) -> float:
        """Factor on the embedding's rows."""
        return 1.0

    @property
    def logit_scale(self) -> float:
        """Factor on the logits."""
        return 1.0

    @property
    def logit_cap(self) -> float | None:
        """Logits are cap * tanh(logits / cap); None if they are not capped."""
        return None

    @property
    def per_layer_inputs(self) -> PerLayerInputs | None:
        """Per-layer embeddings; None if the model has none."""
        return None

    @property
    def stream(self) -> int:
        """Elements of a token between two layers."""
        return self.streams.elements if self.streams else self.hidden_size

    @property
    def streams(self) -> Streams | None:
        """AltUp streams; None if layers pass on one hidden state."""
        return None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each layer."""
        local = self.sliding.layers if self.sliding else ()
        kinds = (LOCAL if layer in local else GLOBAL for layer in range(self.num_layers))
        return tuple(
            kind if source == layer else f"{kind}{SHARED}"
            for layer, (kind, source) in enumerate(zip(kinds, self.kv_source, strict=True))
        )

    @property
    def variants(self) -> tuple[str, ...]:
        """The kind of each layer, with the format of the slots that it reads if layers of that kind read several."""
        formats = [self.slots.of(source, self.num_layers).encoding for source in self.kv_source]
        several = Counter(kind for kind, _ in set(zip(self.kinds, formats, strict=True)))
        pairs = zip(self.kinds, formats, strict=True)
        return tuple(f"{kind}-{format}" if several[kind] > 1 else kind for kind, format in pairs)

    @property
    def kv_source(self) -> tuple[int, ...]:
        """For each layer the one whose keys and values it attends to: itself, or an earlier one (arXiv 2405.12981)."""
        return tuple(range(self.num_layers))

    @property
    def shares_caches(self) -> bool:
        """Whether some layer reads an earlier layer's cache."""
        return self.kv_source != tuple(range(self.num_layers))

    @property
    def groups(self) -> tuple[LayerGroup, ...]:
        """Layers with the same cache layout and format, whatever their kinds; those with a sliding window come last."""
        found: dict[LayerGroup, list[int]] = {}
        cached = {kind: self._cached(kind) for kind in set(self.kinds)}
        for index, (kind, source) in enumerate(zip(self.kinds, self.kv_source, strict=True)):
            if source == index:
                found.setdefault(cached[kind], []).append(index)
        groups = (group._replace(layers=tuple(layers)) for group, layers in found.items())
        ordered = sorted(groups, key=lambda group: group.window is not None)
        return in_formats(tuple(ordered), self.slots, self.num_layers)

    @property
    def places(self) -> tuple[Place, ...]:
        """Where each layer's cache is."""
        rows, readers = places(self.groups), Counter[int]()
        found = []
        for source in self.kv_source:
            group, row = rows[source]
            found.append(Place(group, row, readers[group]))
            readers[group] += 1
        return tuple(found)

    @property
    def at(self) -> str:
        """Name in the checkpoint of the module that has the layers."""
        return f"{self.prefix}{self.body}"

    def shared_weights(self) -> Declared:
        """Weights that exist once: embedding, final norm and, unless tied, the vocabulary projection."""
        weights = {
            "embed": self._table(f"{self.at}.embed_tokens.weight"),
            "final_norm": vector(f"{self.at}.norm.weight", self.hidden_size),
            **(self.per_layer_inputs.weights(self.at) if self.per_layer_inputs else {}),
            **(self.streams.weights(self.at) if self.streams else {}),
        }
        return weights if self.tied_embeddings else weights | {"head": self._table(f"{self.prefix}lm_head.weight")}

    def layer_weights(self, index: int) -> Declared:
        return self.layer(self.kinds[index]).weights(f"{self.at}.layers.{index}")

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the checkpoint's tensors."""
        groups = (self.shared_weights(), *(self.layer_weights(index) for index in range(self.num_layers)))
        return {part.name: part.stored for group in groups for weight in group.values() for part in weight.parts}

    @property
    def ignored(self) -> tuple[str, ...]:
        """Patterns of tensors that a checkpoint may have and that are not loaded.

        Old checkpoints contain derived buffers; some store a tied matrix twice.
        """
        tied = (f"{self.prefix}lm_head.weight",) if self.tied_embeddings else ()
        return ("*rotary_emb.inv_freq", *tied, *self.unused)

    def _table(self, name: str) -> Weight:
        part = CheckpointTensor(name, (self.vocab_size, self.hidden_size))
        return Weight((part,), "table", shard=0)

    def _cached(self, kind: str) -> LayerGroup:
        """Return the group of a kind, without its layers."""
        layer = self.computed(kind)
        return LayerGroup((), layer.attention.cache, layer.attention.queries, layer.window)
