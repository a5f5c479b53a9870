"""Options: what a user may choose when an engine is made; None leaves it to `resolve`."""

from dataclasses import dataclass
from typing import Literal

from ringkv.base.config import DType, Weights
from ringkv.base.kv import Turns

AUTO = "auto"


@dataclass(frozen=True)
class Options:
    """See `KVChoice` and `EngineConfig` for what each setting does.

    kv_compression: "4x" or 4: the budget is the longest prompt divided by so much; instead of `kv_budget`.
    kv_recent: "25%" or 0.25 of the budget, or a number of entries. prompt_tokens: longest prompt to make room for.
    output_tokens: longest output to make room for where nothing is evicted (policy full).
    prefix_store: host memory for what later prompts begin with, "1GB" or 10**9 bytes; "auto" is as much as is usual,
    where it fits; by default nothing is remembered.
    graphs: "auto" takes static graphs where they can be built.
    """

    kv_policy: str | None = None
    kv_budget: int | None = None
    kv_compression: str | float | None = None
    kv_sinks: int | None = None
    kv_recent: str | float | None = None
    kv_window: int | None = None
    kv_kernel: int | None = None
    kv_pooling: Literal["avg", "max"] | None = None
    kv_groups: Literal["mean", "max"] | None = None
    kv_domain: Literal["row", "candidates"] | None = None
    kv_select: str | None = None
    kv_elastic: bool | None = None
    kv_turns: Turns | None = None
    prefix_store: str | int | None = None
    slots: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    chunk: int | None = None
    lanes: int | None = None
    dtype: DType | None = None
    weights: Weights | None = None
    device: str | None = None
    graphs: Literal["auto", "compiled", "off"] | None = None
    threads: int | None = None
