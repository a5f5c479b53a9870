"""ModelConfig: the configuration of a decoder of any family. No torch."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from ringkv.base.cache_spec import PLAIN_SLOTS, LayerGroup, SlotFormat, in_formats
from ringkv.base.ranks import ONE_RANK, AttentionParallel, Exchange, Rank
from ringkv.models.gemma_layers import PerLayerInputs, Streams
from ringkv.models.layer import Attention, Layer, Norm
from ringkv.models.online import NONE, OnlineRotations, rotating
from ringkv.models.ranks import check_ranks, has_latents
from ringkv.models.weights import CheckpointTensor, Declared, Weight, vector

GLOBAL, LOCAL = "global", "local"
"""Kinds of layers: global ones attend to all tokens, local ones have a sliding window."""

SHARED = "-shared"  # ends the name of a kind of layer that reads an earlier layer's cache


class CachePlace(NamedTuple):
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
class ModelConfig:
    """The configuration of one decoder.

    norm: before the vocabulary projection. kinds: the kind of each layer. layers: what the layers of a kind compute.
    kv_source: for each layer the one whose keys and values it attends to, itself or an earlier one (arXiv 2405.12981).
    embed_scale, logit_scale: factors on the embedding's rows and on the logits. logit_cap: logits are
    cap * tanh(logits / cap); None if they are not capped. streams: None if layers pass on one hidden state.
    """

    architecture: str  # as config.json's "architectures"[0], e.g. "LlamaForCausalLM"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm: Norm
    context: int  # max_position_embeddings
    tied_embeddings: bool
    eos_ids: tuple[int, ...]
    bos_id: int | None
    kinds: tuple[str, ...]
    layers: Mapping[str, Layer]
    kv_source: tuple[int, ...]
    sliding: Sliding | None = None
    embed_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float | None = None
    per_layer_inputs: PerLayerInputs | None = None
    streams: Streams | None = None
    prefix: str = ""  # before every name in the checkpoint
    body: str = "model"  # the module of embedding, layers and final norm
    unused: tuple[str, ...] = ()  # patterns of checkpoint tensors that this model does not use
    rank: Rank = ONE_RANK  # whose part `computed` and `groups` describe; all else describes the whole model
    exchange: Exchange = "none"
    attention_parallel: AttentionParallel = "heads"
    slots: SlotFormat = PLAIN_SLOTS
    online: OnlineRotations = NONE

    @property
    def num_layers(self) -> int:
        return len(self.kinds)

    def of_rank(self, rank: Rank, exchange: Exchange, parallel: AttentionParallel = "heads") -> Self:
        """Return the configuration of a rank. Raises InvalidRequest if the model cannot be divided like this."""
        if rank.count > 1:
            check_ranks({kind: rotating(layer, self.online) for kind, layer in self.layers.items()}, rank, parallel)
        return replace(self, rank=rank, exchange=exchange, attention_parallel=parallel)

    @property
    def has_latents(self) -> bool:
        """Whether all layers have latent attention, so that ranks can divide the slots."""
        return has_latents(self.layers.values())

    @property
    def slot_share(self) -> Rank:
        """The rank, if ranks divide the slots; else one that has all slots."""
        return self.rank if self.attention_parallel == "slots" else ONE_RANK

    def with_slots(self, slots: SlotFormat) -> Self:
        """Return the configuration with slots in a format."""
        return replace(self, slots=slots)

    def computed(self, kind: str) -> Layer:
        """Describe what the rank computes of the layers of a kind."""
        layer = rotating(self.layers[kind], self.online)
        return layer if self.rank.count == 1 else layer.of_rank(self.rank, self.exchange, self.attention_parallel)

    @property
    def vocab_spans(self) -> tuple[range, ...]:
        """The rows of the vocabulary that each rank has."""
        return tuple(Rank(index, self.rank.count).elements(self.vocab_size) for index in range(self.rank.count))

    @property
    def stream(self) -> int:
        """Elements of a token between two layers."""
        return self.streams.elements if self.streams else self.hidden_size

    @property
    def variants(self) -> tuple[str, ...]:
        """The kind of each layer, with the format of the slots that it reads if layers of that kind read several."""
        formats = [self.slots.of(source, self.num_layers).encoding for source in self.kv_source]
        several = Counter(kind for kind, _ in set(zip(self.kinds, formats, strict=True)))
        pairs = zip(self.kinds, formats, strict=True)
        return tuple(f"{kind}-{format}" if several[kind] > 1 else kind for kind, format in pairs)

    @property
    def shares_caches(self) -> bool:
        """Whether some layer reads an earlier layer's cache."""
        return self.kv_source != tuple(range(self.num_layers))

    @property
    def groups(self) -> tuple[LayerGroup, ...]:
        """Layers with the same cache layout and format, whatever their kinds; those with a sliding window come last."""
        indices: dict[LayerGroup, list[int]] = {}
        cached = {}
        for kind in self.layers:
            layer = self.computed(kind)
            cached[kind] = LayerGroup((), layer.attention.cache, layer.attention.queries, layer.window)
        for index, (kind, source) in enumerate(zip(self.kinds, self.kv_source, strict=True)):
            if source == index:
                indices.setdefault(cached[kind], []).append(index)
        groups = (group._replace(layers=tuple(layers)) for group, layers in indices.items())
        ordered = sorted(groups, key=lambda group: group.window is not None)
        return in_formats(tuple(ordered), self.slots, self.num_layers)

    @property
    def places(self) -> tuple[CachePlace, ...]:
        """Where each layer's cache is."""
        groups, readers = enumerate(self.groups), Counter[int]()
        rows = {layer: (index, row) for index, group in groups for row, layer in enumerate(group.layers)}
        caches = []
        for source in self.kv_source:
            group, row = rows[source]
            caches.append(CachePlace(group, row, readers[group]))
            readers[group] += 1
        return tuple(caches)

    @property
    def at(self) -> str:
        """Name in the checkpoint of the module that has the layers."""
        return f"{self.prefix}{self.body}"

    @property
    def embedding_name(self) -> str:
        return f"{self.at}.embed_tokens.weight"

    @property
    def head_name(self) -> str:
        """Name in the checkpoint of the vocabulary projection, which a tied model lacks."""
        return f"{self.prefix}lm_head.weight"

    def shared_weights(self) -> Declared:
        """Weights that exist once: embedding, final norm and, unless tied, the vocabulary projection."""
        weights = {
            "embed": self._table(self.embedding_name),
            "final_norm": vector(f"{self.at}.norm.weight", self.hidden_size),
            **(self.per_layer_inputs.weights(self.at) if self.per_layer_inputs else {}),
            **(self.streams.weights(self.at) if self.streams else {}),
        }
        return weights if self.tied_embeddings else weights | {"head": self._table(self.head_name)}

    def layer_weights(self, index: int) -> Declared:
        return self.layers[self.kinds[index]].weights(f"{self.at}.layers.{index}")

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
        tied = (self.head_name,) if self.tied_embeddings else ()
        return ("*rotary_emb.inv_freq", *tied, *self.unused)

    def _table(self, name: str) -> Weight:
        part = CheckpointTensor(name, (self.vocab_size, self.hidden_size))
        return Weight((part,), "table", shard=0)


class Change(NamedTuple):
    """Fields of `Layer` that are different in some layers.

    mark: ends the name of their kind; "" if another mark tells these layers from the others.
    """

    mark: str
    layers: Collection[int]
    fields: Mapping[str, Any]


def decoder(
    fields: Mapping[str, Any],
    layer: Layer,
    *changes: Change,
    sliding: Sliding | None = None,
    local: Mapping[str, Any] = MappingProxyType({}),
    kv_source: tuple[int, ...] = (),
    **more: Any,
) -> ModelConfig:
    """Return the configuration of a decoder whose layers are `layer`, but for the changes.

    fields: those of `reading.common`. local: the fields of `Layer` that are different in layers with a sliding window,
    besides the window. kv_source: as `ModelConfig` has it; empty if no layers share caches. more: fields of
    `ModelConfig`.
    """
    sizes, kinds, layers = dict(fields), [], {}
    every = range(sizes.pop("num_layers"))
    source = kv_source or tuple(every)
    for index in every:
        here = [change for change in changes if index in change.layers]
        if sliding and index in sliding.layers:
            kind, changed = LOCAL, replace(layer, window=sliding.window, **local)
        else:
            kind, changed = GLOBAL, layer
        for change in here:
            changed = replace(changed, **change.fields)
        if source[index] != index:
            assert isinstance(changed.attention, Attention)
            kind, changed = f"{kind}{SHARED}", replace(changed, attention=replace(changed.attention, shared=True))
        kinds.append("".join((kind, *(change.mark for change in here))))
        layers[kinds[-1]] = changed
    return ModelConfig(**sizes, kinds=tuple(kinds), layers=layers, kv_source=source, sliding=sliding, **more)
