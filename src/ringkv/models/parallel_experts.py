"""parallel_experts: experts beside a dense feed-forward, each with its own norms (Gemma 4), as plain data. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from ringkv.base.ranks import Rank
from ringkv.base.router import Router
from ringkv.base.stack import Stack
from ringkv.models.layer import Activation, FeedForward
from ringkv.models.weights import CheckpointTensor, Declared, Pack, Weight, vector

NORMS: Mapping[str, str] = {
    "dense_out_norm": "post_feedforward_layernorm_1",
    "experts_norm": "pre_feedforward_layernorm_2",
    "experts_out_norm": "post_feedforward_layernorm_2",
}


@dataclass(frozen=True)
class ParallelExperts:
    """A dense feed-forward and experts, whose normalised results are added.

    The router has a norm of its own, and a factor for each expert. intermediate: elements of each expert.
    """

    dense: FeedForward
    intermediate: int
    router: Router

    @property
    def activation(self) -> Activation:
        return self.dense.activation

    def weights(self, prefix: str) -> Declared:
        """Declare the weights of the checkpoint's layer `prefix`; ranks split the intermediate elements."""
        hidden, count = self.dense.hidden, self.router.experts
        router = CheckpointTensor(f"{prefix}.router.proj.weight", (count, hidden))
        return {
            **self.dense.weights(prefix),
            **{ours: vector(f"{prefix}.{name}.weight", hidden) for ours, name in NORMS.items()},
            "router": Weight((router,), "router"),
            "router_norm": vector(f"{prefix}.router.scale", hidden),
            "router_factors": vector(f"{prefix}.router.per_expert_scale", count, "exact"),
            "experts_gate_up": self._stacked(f"{prefix}.experts.gate_up_proj", self.intermediate, hidden, 2, "gated"),
            "experts_down": self._stacked(f"{prefix}.experts.down_proj", hidden, self.intermediate, 1, "matrix"),
        }

    def of_rank(self, rank: Rank) -> Self:
        """Return the intermediate elements that a rank computes, of the dense feed-forward and of each expert."""
        return replace(self, dense=self.dense.of_rank(rank), intermediate=len(rank.elements(self.intermediate)))

    def _stacked(self, name: str, rows: int, columns: int, halves: int, pack: Pack) -> Weight:
        """Declare each expert's matrix; the tensor has all gates of an expert before its ups."""
        count, axis = self.router.experts, 0 if pack == "gated" else 1
        stacks = (
            Stack(count, at, halves * rows, 1, half * rows, False) for at in range(count) for half in range(halves)
        )
        parts = tuple(CheckpointTensor(name, (rows, columns), stack=stack) for stack in stacks)
        return Weight(parts, pack, axis, count, self.router.chosen)
