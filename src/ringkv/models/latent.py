"""latent: multi-head latent attention, as plain data (DeepSeek-V2, arXiv 2405.04434, section 2.1). No torch.

A token's keys and values of all heads follow from one latent, which the cache holds with one rotated key. Each head's
queries are multiplied with its key matrix instead (absorbed), so that all heads attend to the latents themselves.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

from ringkv.base.cache_spec import CacheSpec
from ringkv.base.ranks import AttentionParallel, Rank
from ringkv.models.weights import CheckpointTensor, Declared, Heads, Weight, linear, parts, vector

LATENT_EPS = 1e-6  # of the norms of latents, whatever the model's other norms have


@dataclass(frozen=True)
class LatentAttention:
    """Latent attention of tokens with `hidden` elements.

    rank: elements of a latent. rope: rotated elements, of a query and of the one key. nope: a head's elements that do
    not rotate. value: elements of a head's value. query_rank: queries follow from a latent of so many elements; None:
    from x. scale: factor on the scores before the softmax. shares: query heads of each rank, if ranks divide the slots.
    """

    hidden: int
    heads: int
    rank: int
    rope: int
    nope: int
    value: int
    scale: float
    query_rank: int | None = None
    bias: bool = False
    shares: tuple[int, ...] = ()

    @property
    def cache(self) -> CacheSpec:
        """What one token stores in a cache."""
        return CacheSpec.latent(self.rank, self.rope, self.scale)

    @property
    def queries(self) -> int:
        """Query heads that attend to the one latent of a token."""
        return self.heads

    @property
    def query(self) -> int:
        """Elements of all queries."""
        return self.heads * (self.nope + self.rope)

    def weights(self, prefix: str) -> Declared:
        """Declare the weights of the checkpoint's layer `prefix`."""
        module = f"{prefix}.self_attn"
        first = {"q_a_proj": self.query_rank} if self.query_rank else {"q_proj": self.query}
        rows = {**first, "kv_a_proj_with_mqa": self.rank + self.rope}
        latents = parts(module, rows, heads=(Heads(1 if self.query_rank else self.heads), Heads(1)))
        output = parts(module, {"o_proj": self.hidden}, heads=(Heads(self.heads),))
        queries: Declared = {}
        if self.query_rank:
            query = parts(module, {"q_b_proj": self.query}, heads=(Heads(self.heads),))
            norm = vector(f"{module}.q_a_layernorm.weight", self.query_rank)
            queries = {"query_norm": norm, **linear("query", query, self.query_rank, False, 0, "matrix")}
        return {
            **linear("latents", latents, self.hidden, self.bias, 0, "matrix"),
            **queries,
            "latent_norm": vector(f"{module}.kv_a_layernorm.weight", self.rank),
            "key_up": Weight(tuple(self._heads(module, 0, self.nope)), "transposed", "matrices", self.heads),
            "value_up": Weight(tuple(self._heads(module, self.nope, self.value)), "by_head", "matrices", self.heads),
            **linear("output", output, self.heads * self.value, self.bias, 1, "matrix"),
        }

    def of_rank(self, rank: Rank, parallel: AttentionParallel) -> Self:
        """Return the heads that a rank computes. It stages all latents, and has those of all slots or of its own."""
        every = (Rank(index, rank.count) for index in range(rank.count))
        shares = tuple(len(part.heads(self.heads)) for part in every) if parallel == "slots" else ()
        return replace(self, heads=len(rank.heads(self.heads)), shares=shares)

    def _heads(self, module: str, first: int, size: int) -> Iterator[CheckpointTensor]:
        """Yield each head's rows of the matrix from latents to keys and values."""
        each = self.nope + self.value
        for head in range(self.heads):
            yield CheckpointTensor(
                f"{module}.kv_b_proj.weight", (size, self.rank), head * each + first, self.heads * each
            )
