"""Options: what a user may set when an engine is built. `resolve` fills in None."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ringkv.base.cache_spec import PlaneFormat
from ringkv.base.config import Activations, DType, Weights
from ringkv.base.kv import HeadBudgets, TurnMode
from ringkv.base.ranks import AttentionParallel
from ringkv.base.selectors import Pooling

AUTO = "auto"


@dataclass(frozen=True)
class Options:
    """The cache's settings are those of `kv_settings.AT_START`; `EngineConfig` documents the others.

    kv_compression: replaces `kv_budget`. With "4x" or 4, the budget is a quarter of the longest prompt.
    kv_recent: "25%" or 0.25 of the budget, or a number of entries. prompt_tokens: longest prompt.
    prefill_workspace: staged tokens of one prompt at most. A longer prompt is compressed while it is prefilled.
    Default: prompt_tokens.
    output_tokens: longest output under policy full, which evicts nothing.
    prefix_store: host memory of the prefix store, "1GB" or 10**9 bytes. "auto" is 1 GB if that fits. Default: 0.
    speculate: draft tokens per step, taken from repetition in the request's text. Default: 0. speculative_config: where
    else drafts come from, see `plan.speculation`.
    graphs: "auto" compiles static graphs if that is possible, "background" does so while the engine runs eagerly.
    lanes: longest prompts that staging holds at once. activations: rows of products with int8 and int4 weights; "auto"
    is int8 if the CPU multiplies it faster; "int4" is for int4 weights, and multiplied as int8.
    max_step: milliseconds between two tokens of a running request while prompts are prefilled. tensor_parallel: ranks,
    processes that divide the model. Default: 1. threads: of each rank. nnodes: machines that run equally many ranks.
    node_rank: index of this machine. master_addr, master_port: where the first machine listens. expert_parallel: each
    rank has whole experts. Default: a share of every expert. attention_parallel: what ranks divide of attention.
    Default: the slots if attention is latent and each rank gets one, else the heads. "slots" raises the number of slots
    to a multiple of the ranks.
    """

    kv_policy: str | None = None
    kv_budget: int | None = None
    kv_compression: str | float | None = None
    kv_format: PlaneFormat | None = None
    kv_format_skip: int | None = None
    kv_page: int | None = None
    kv_tier: str | None = None
    kv_profile: str | None = None
    kv_sinks: int | None = None
    kv_recent: str | float | None = None
    kv_window: int | None = None
    kv_kernel: int | None = None
    kv_pooling: Pooling | None = None
    kv_select: str | None = None
    kv_heads: HeadBudgets | None = None
    kv_review: int | None = None
    kv_elastic: bool | None = None
    kv_turns: TurnMode | None = None
    prefix_store: str | int | None = None
    slots: int | None = None
    prompt_tokens: int | None = None
    prefill_workspace: int | None = None
    output_tokens: int | None = None
    chunk: int | None = None
    lanes: int | None = None
    dtype: DType | None = None
    weights: Weights | None = None
    activations: Literal["auto"] | Activations | None = None
    device: str | None = None
    graphs: Literal["auto", "compiled", "background", "off"] | None = None
    threads: int | None = None
    speculate: int | None = None
    speculative_config: str | Mapping[str, Any] | None = None
    max_step: int | None = None
    tensor_parallel: int | None = None
    expert_parallel: bool | None = None
    nnodes: int | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    attention_parallel: AttentionParallel | None = None

    @property
    def compiling_behind(self) -> "Options":
        """These options for a command that answers before its graphs are compiled, unless its user has decided."""
        return replace(self, graphs="background") if self.graphs in (None, "auto") else self

    def filled(self, **defaults: Any) -> "Options":
        """Return the options with these where they are open."""
        return replace(self, **{name: value for name, value in defaults.items() if getattr(self, name) is None})
