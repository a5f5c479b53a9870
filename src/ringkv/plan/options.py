"""Options: what a user may choose when an engine is made; None leaves it to `resolve`."""

from dataclasses import dataclass
from typing import Literal

from ringkv.base.config import DType, Weights
from ringkv.plan.kv_settings import AtStart

AUTO = "auto"


@dataclass(frozen=True)
class Options(AtStart):
    """The settings of the cache are `AtStart`'s; see `EngineConfig` for what the others do.

    kv_compression: "4x" or 4: the budget is the longest prompt divided by so much; instead of `kv_budget`.
    kv_recent: "25%" or 0.25 of the budget, or a number of entries. prompt_tokens: longest prompt to make room for.
    output_tokens: longest output to make room for where nothing is evicted (policy full).
    prefix_store: host memory for what later prompts begin with, "1GB" or 10**9 bytes; "auto" is as much as is usual,
    where it fits; by default nothing is remembered.
    speculate: tokens to guess ahead per step, from what the request's text repeats; none by default.
    graphs: "auto" takes static graphs where they can be built.
    """

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
    speculate: int | None = None
