"""experts: a mixture of experts in place of a feed-forward, as plain data. No torch.

A router chooses a few experts for each token. `kernels/route.py` computes that, and `kernels/experts.py` multiplies.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Self

from ringkv.base.ranks import Rank
from ringkv.base.router import Router
from ringkv.base.stack import Stack
from ringkv.models.layer import Activation, FeedForward
from ringkv.models.weights import CheckpointTensor, Declared, ExpertShard, Pack, Weight, vector


@dataclass(frozen=True)
class Experts:
    """Gated feed-forwards, of which a router chooses some for each token, with `intermediate` elements each.

    shared: a feed-forward that serves every token as well. shared_gate: the name of a matrix of one row, whose product
    with x, through a sigmoid, is the weight of the shared feed-forward; None is 1. correction: a vector is added to the
    router's scores, for the choice alone. module, router_name, gate, up, down: names in the checkpoint. held: first and
    number of the experts that the rank has; None is all.
    """

    hidden: int
    intermediate: int
    router: Router
    shared: FeedForward | None = None
    shared_gate: str | None = None
    correction: bool = False
    activation: Activation = "silu"
    module: str = "mlp"
    router_name: str = "gate"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    held: tuple[int, int] | None = None

    def weights(self, prefix: str) -> Declared:
        """Declare the weights of the checkpoint's layer `prefix`; ranks split intermediate elements, or the experts."""
        module, shared = f"{prefix}.{self.module}", self.shared.weights(prefix) if self.shared else {}
        name = f"{module}.{self.router_name}.e_score_correction_bias"
        correction = vector(name, self.router.experts, "exact")
        return {
            "router": self._router(module),
            **({"router_correction": correction} if self.correction else {}),
            "experts_gate_up": self._matrices(module, (self.gate, self.up), (self.intermediate, self.hidden), "gated"),
            "experts_down": self._matrices(module, (self.down,), (self.hidden, self.intermediate), "matrix"),
            **{f"shared_{name}": weight for name, weight in shared.items()},
        }

    def of_rank(self, rank: Rank) -> Self:
        """Return what a rank computes: some intermediate elements of each expert, or all of its own experts.

        The shared feed-forward is split by elements in both cases.
        """
        shared = self.shared.of_rank(rank) if self.shared else None
        if rank.expert_parallel:
            span = rank.experts(self.router.experts)
            return replace(self, held=(span.start, len(span)), shared=shared)
        return replace(self, intermediate=len(rank.elements(self.intermediate)), shared=shared)

    def _router(self, module: str) -> Weight:
        rows = {f"{self.router_name}.weight": self.router.experts}
        if self.shared_gate:
            rows[f"{self.shared_gate}.weight"] = 1
        parts = (CheckpointTensor(f"{module}.{name}", (count, self.hidden)) for name, count in rows.items())
        return Weight(tuple(parts), "router")

    def _matrices(self, module: str, names: Sequence[str], shape: tuple[int, int], pack: Pack) -> Weight:
        """Declare one matrix for each expert, of the parts with these names."""
        each = product(range(self.router.experts), names)
        tensors = (CheckpointTensor(f"{module}.experts.{expert}.{name}.weight", shape) for expert, name in each)
        return _of_experts(self.router, tensors, pack)


def _of_experts(router: Router, tensors: Iterable[CheckpointTensor], pack: Pack) -> Weight:
    """Declare the matrices of all experts; ranks split intermediate elements, or the experts."""
    return Weight(tuple(tensors), pack, ExpertShard(_AXES[pack]), router.experts, router.chosen)


_AXES: Mapping[Pack, int] = {"gated": 0, "matrix": 1}
"""The dimension of a matrix that has an expert's intermediate elements."""


@dataclass(frozen=True)
class StackedExperts(Experts):
    """Experts whose checkpoint has one tensor for all gates and ups, whose rows alternate, and one for all downs.

    The router, and each expert's products, have biases (gpt-oss, arXiv 2508.10925).
    """

    def weights(self, prefix: str) -> Declared:
        module, between = f"{prefix}.{self.module}", self.intermediate
        return {
            "router": self._router(module),
            "router_bias": vector(f"{module}.{self.router_name}.bias", self.router.experts, "router"),
            **self._products(f"{module}.experts.gate_up_proj", "gate_up", 2 * between, self.hidden, "gated"),
            **self._products(f"{module}.experts.down_proj", "down", self.hidden, between, "matrix"),
        }

    def _products(self, name: str, ours: str, rows: int, columns: int, pack: Pack) -> Declared:
        """Declare each expert's matrix [rows, columns], and all biases as one vector."""
        step, count = (2 if pack == "gated" else 1), self.router.experts
        stacks = [Stack(count, expert, rows, step, offset) for expert in range(count) for offset in range(step)]
        matrices = (CheckpointTensor(name, (rows // step, columns), stack=stack) for stack in stacks)
        biases = tuple(CheckpointTensor(f"{name}_bias", (rows // step,), stack=stack) for stack in stacks)
        shard = ExpertShard(0 if pack == "gated" else "first")
        return {
            f"experts_{ours}": _of_experts(self.router, matrices, pack),
            f"experts_{ours}_bias": Weight(biases, "plain", shard, count, self.router.chosen),
        }


@dataclass(frozen=True)
class ParallelExperts:
    """A dense feed-forward and experts beside it, whose results are normalised and added (Gemma 4).

    The router has a norm of its own, and a factor for each expert. intermediate: elements of each expert.
    """

    dense: FeedForward
    intermediate: int
    router: Router

    @property
    def activation(self) -> Activation:
        return self.dense.activation

    def weights(self, prefix: str) -> Declared:
        """Declare the weights of the checkpoint's layer `prefix`."""
        hidden, between, count = self.dense.hidden, self.intermediate, self.router.experts
        router = CheckpointTensor(f"{prefix}.router.proj.weight", (count, hidden))
        norms = {
            "dense_out_norm": "post_feedforward_layernorm_1",
            "experts_norm": "pre_feedforward_layernorm_2",
            "experts_out_norm": "post_feedforward_layernorm_2",
        }
        return {
            **self.dense.weights(prefix),
            **{ours: vector(f"{prefix}.{name}.weight", hidden) for ours, name in norms.items()},
            "router": Weight((router,), "router"),
            "router_norm": vector(f"{prefix}.router.scale", hidden),
            "router_factors": vector(f"{prefix}.router.per_expert_scale", count, "exact"),
            "experts_gate_up": self._stacked(f"{prefix}.experts.gate_up_proj", between, hidden, "gated"),
            "experts_down": self._stacked(f"{prefix}.experts.down_proj", hidden, between, "matrix"),
        }

    def of_rank(self, rank: Rank) -> Self:
        """Return the intermediate elements that a rank computes, of the dense feed-forward and of each expert."""
        return replace(self, dense=self.dense.of_rank(rank), intermediate=len(rank.elements(self.intermediate)))

    def _stacked(self, name: str, rows: int, columns: int, pack: Pack) -> Weight:
        """Declare each expert's matrix; the tensor has all gates of an expert before its ups."""
        halves, count = (2 if pack == "gated" else 1), self.router.experts
        each = product(range(count), range(halves))
        stacks = (Stack(count, expert, halves * rows, 1, half * rows, False) for expert, half in each)
        return _of_experts(
            self.router, (CheckpointTensor(name, (rows, columns), stack=stack) for stack in stacks), pack
        )
