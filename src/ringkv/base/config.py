"""EngineConfig: everything an engine is built from. It is plain data, so it can cross a process boundary.

`plan.resolve` makes it: it fills in the options that the user left open and checks that the engine fits in memory.
"""

from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from ringkv.base.cache_spec import IN_HOST_MEMORY, PLAIN_SLOTS, SlotFormat
from ringkv.base.kv import KVChoice
from ringkv.base.ranks import ONE_NODE, ONE_RANK, AttentionParallel, Exchange, Nodes, Rank
from ringkv.base.workspace import Workspace, workspace

DType = Literal["bfloat16", "float16", "float32"]
Weights = Literal["bf16", "int8", "int4"]
Activations = Literal["16-bit", "int8", "int4"]
HeadShares = tuple[tuple[float, ...], ...]
"""What each key-value head needs, relative to others, by layer."""
Graphs = Literal["compiled", "background", "off"]


@dataclass(frozen=True)
class Shapes:
    """What an `EngineConfig` and the `Limits` of the engine that was built from it have in common."""

    slots: int  # requests that decode together
    capacity: int  # entries per slot
    prompt_tokens: int  # longest prompt; a multiple of chunk
    chunk: int  # rows of a pass with prompts, at most
    lanes: int  # prompts staged at once
    _: KW_ONLY
    prefill_workspace: int = 0  # staged entries of one prompt at most; longer prompts are compacted. 0: prompt_tokens
    max_step: float = 0.0  # seconds between two tokens of a running request, if chunks can be cut small enough; 0: any

    @property
    def workspace(self) -> Workspace:
        """Staged entries of one prompt."""
        return workspace(self.prefill_workspace, self.prompt_tokens, self.chunk)

    @property
    def shared(self) -> dict[str, Any]:
        """These fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(Shapes)}


@dataclass(frozen=True)
class EngineConfig(Shapes):
    """`capacity` is at least `kv.budget`."""

    model_dir: Path  # Hugging Face layout: config.json, *.safetensors, tokenizer.json
    kv: KVChoice  # default for requests that set none; its budget is a number here
    dtype: DType
    weights: Weights  # "bf16": matrices in `dtype`; "int8" and "int4" quantise the matrices, not the cache
    device: str  # "cpu", "cuda:0"
    graphs: Graphs  # "compiled": before the engine is ready; "background": while functions run eagerly; "off": never
    threads: int  # intra-op threads of the engine
    cache_dir: Path  # directory of built graphs
    activations: Activations = "16-bit"  # rows of products with quantised weights; "int8" and "int4" round them by row
    slot_format: SlotFormat = PLAIN_SLOTS  # of slots and conversations; staging and stored prompts use `dtype`
    kv_tier: Path | None = None  # directory of files that hold the entries in pages; None: memory
    head_shares: HeadShares = ()  # of kv_heads profile; () if there is no profile of the model's heads
    speculate: int = 0  # drafted tokens per step; 0 disables drafts
    drafter: "EngineConfig | None" = None  # of the draft model that makes these drafts; None: prompt lookup
    store_bytes: int = 0  # host memory of the prefix store; 0 disables it
    staged_tokens: int = 0  # of all lanes together; 0: each lane has room for its workspace
    rank: Rank = ONE_RANK  # which part of the model the engine holds
    exchange: Exchange = "none"  # how it exchanges results with other ranks
    nodes: Nodes = ONE_NODE  # the machines of all ranks
    attention_parallel: AttentionParallel = "heads"  # "slots", of latent attention: `slots` is a multiple of the ranks
    prefill: tuple[str, ...] = ()  # HOST:PORT of the workers that prefill its prompts; none: it does so itself
    kv_why: str = ""  # why `kv_policy auto` chose the policy; "" if the user named it

    @property
    def slot_ranks(self) -> int:
        """Ranks that divide the slots; 1 if each has all of them."""
        return self.rank.count if self.attention_parallel == "slots" else 1

    @property
    def answers_in_lanes(self) -> bool:
        """See `Limits`. A lane must be left for other prompts."""
        is_usual = self.slot_format.reading == "everything" and self.slot_format.encoding != "zipcache"
        return is_usual and self.slot_ranks == 1 and not self.prefill and (self.lanes > 1 or self.slots == 1)

    @property
    def tier(self) -> str:
        """See `Limits`."""
        return IN_HOST_MEMORY if self._resident else str(self.kv_tier or "")

    @property
    def resident_pages(self) -> int | None:
        """See `Limits.resident`."""
        return self._resident or (None if self.kv_tier is None else 0)

    @property
    def page(self) -> int:
        """Entries of a page of slots; 0 if they are not read in pages. `capacity` is a multiple of it."""
        return self.slot_format.pages.size if self.slot_format.pages else 0

    @property
    def _resident(self) -> int:
        return self.slot_format.pages.resident if self.slot_format.pages else 0

    @property
    def staged_entries(self) -> int:
        """Entries of the staging."""
        return self.staged_tokens or self.lanes * self.workspace.size
