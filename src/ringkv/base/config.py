"""EngineConfig: everything an engine is built from, complete and plain, so that it can cross a process boundary.

Made once at the edge by `plan.resolve`, which fills in what the user left open and checks that it fits in memory.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ringkv.base.cache_spec import PlaneFormat
from ringkv.base.kv import KVChoice

DType = Literal["bfloat16", "float16", "float32"]
Weights = Literal["bf16", "int8", "int4"]
Graphs = Literal["compiled", "off"]


@dataclass(frozen=True)
class EngineConfig:
    model_dir: Path  # Hugging Face layout: config.json, *.safetensors, tokenizer.json
    kv: KVChoice  # what a request gets that does not choose; its budget is a number here
    slots: int  # requests that decode together
    capacity: int  # entries per slot; at least kv.budget
    prompt_tokens: int  # longest prompt; a multiple of chunk
    chunk: int  # prompt tokens per prefill step
    lanes: int  # prompts staged at once
    dtype: DType
    weights: Weights  # "bf16": as `dtype` says; matrices are quantised otherwise, and the cache is not
    device: str  # "cpu", "cuda:0"
    graphs: Graphs  # "compiled": static graphs built once and kept on disk; "off": the same functions eagerly
    threads: int  # intra-op threads of the engine
    cache_dir: Path  # where built graphs are kept
    kv_format: PlaneFormat = "plain"  # of slots; prompts are staged, and prefixes kept, in `dtype`
    speculate: int = 0  # tokens guessed ahead per step, from what the request's text repeats; 0 guesses none
    store_bytes: int = 0  # host memory for what later prompts may begin with; 0 remembers nothing
