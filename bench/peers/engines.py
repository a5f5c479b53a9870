"""engines: the measured engines, with the settings that make each a fair or a strong competitor.

Every engine samples greedily, ignores end-of-text tokens, has no prefix cache, and uses the threads of `Demand`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from bench.peers.workload import BLOCK, ROOM, budget
from ringkv.base.kv import KVChoice

Bits = Literal[16, 8, 4]
Format = Literal["hf", "gguf", "openvino"]
Options = dict[str, Any]


@dataclass(frozen=True)
class Demand:
    """The requests that one process must serve.

    token_bytes: keys and values of one token at 16 bits, all layers and heads.
    groups: query heads per key-value head.
    cache_bytes: limit for keys and values, as in the equal-bytes protocol; None: no limit.
    """

    requests: int
    prompt: int
    threads: int
    token_bytes: int
    head_dim: int
    groups: int
    bits: Bits = 16
    cache_bytes: int | None = None

    @property
    def length(self) -> int:
        """The tokens of one request, prompt and output."""
        return self.prompt + ROOM


@dataclass(frozen=True)
class PeerEngine:
    """An engine with its settings.

    environment: a name of `install`. worker: a module of `workers`. weights: dtype name by bits.
    kept: prompt tokens in the cache while decoding, by prompt length. peak_tokens: of all requests together.
    shares: bytes of its cache over those of a 16-bit cache, by head_dim.
    fixed_size: the number of requests is fixed at start, so each number gets a process; other engines start once for
    the largest. loads_once: one process serves the whole run, because it takes a minute to start.
    """

    name: str
    environment: str
    worker: str
    format: Format
    weights: Mapping[Bits, str]
    options: Callable[[Demand], Options]
    kept: Callable[[int], int] = lambda prompt: prompt
    peak_tokens: Callable[[Demand], int] = lambda need: need.requests * need.length
    shares: Callable[[int], float] = lambda head_dim: 1.0
    fixed_size: bool = False
    loads_once: bool = False


def blocks(tokens: int, size: int = BLOCK) -> int:
    return -(-tokens // size)


# ---- ringkv ----

OURS: Mapping[Bits, str] = {16: "bf16", 8: "int8", 4: "int4"}


def ringkv(need: Demand) -> Options:
    return _ringkv(need) | {"kv_policy": "snapstream", "kv_budget": budget(need.prompt)}


def ringkv_full(need: Demand) -> Options:
    return _ringkv(need) | {"kv_policy": "full", "output_tokens": ROOM}


def ringkv_peak_tokens(need: Demand) -> int:
    return need.requests * budget(need.prompt) + _staged(need)


def ringkv_full_peak_tokens(need: Demand) -> int:
    return need.requests * need.length + _staged(need)


def _staged(need: Demand) -> int:
    """Return the tokens of one prompt and of its window's queries, which are `groups` vectors; a token is two."""
    return need.prompt + KVChoice().window * need.groups // 2


def _ringkv(need: Demand) -> Options:
    options: Options = {"slots": need.requests, "prompt_tokens": need.prompt, "threads": need.threads}
    return options if need.bits == 16 else options | {"weights": OURS[need.bits]}


# ---- llama.cpp ----

CELLS = 256  # a request's number of cells is a multiple of this


def llama_cpp_peak_tokens(need: Demand) -> int:
    return need.requests * blocks(need.length, CELLS) * CELLS


def llama_cpp(cache: str, flash: bool = True) -> Callable[[Demand], Options]:
    def options(need: Demand) -> Options:
        check_repack = need.bits < 16  # repacking such weights crashes on some machines with AMX
        sizes: Options = {"slots": need.requests, "length": need.length, "threads": need.threads}
        return sizes | {"cache": cache, "flash": flash, "check_repack": check_repack}

    return options


# ---- vLLM ----

VLLM_BLOCK = 128


def vllm_peak_tokens(need: Demand) -> int:
    """Return the tokens of whole blocks and one spare block."""
    return (need.requests * blocks(need.length, VLLM_BLOCK) + 1) * VLLM_BLOCK


def vllm(need: Demand) -> Options:
    return {
        "slots": need.requests,
        "length": need.length,
        "threads": need.threads,
        "dtype": "bfloat16",
        "cache_bytes": vllm_peak_tokens(need) * need.token_bytes if need.cache_bytes is None else need.cache_bytes,
    }


# ---- OpenVINO GenAI ----

CHUNK = 8192  # prompt tokens per step; longer chunks are faster up to this size


def openvino(precision: str) -> Callable[[Demand], Options]:
    def options(need: Demand) -> Options:
        return _openvino(need, precision, need.requests * blocks(need.length), CHUNK)

    return options


def openvino_evict(precision: str) -> Callable[[Demand], Options]:
    def options(need: Demand) -> Options:
        keeps = budget(need.prompt)
        # Eviction runs after a whole prompt, so at the peak one prompt is held in full beside the others' kept blocks.
        # With a byte limit, a step is one prompt long, so that two prompts are never held in full.
        chunk = CHUNK if need.cache_bytes is None else need.prompt
        peak = need.requests * (blocks(keeps) + 2) + 2 * blocks(max(chunk, need.prompt))
        evict = {
            "mode": "NORM_SUM",
            "start_size": BLOCK,
            "recent_size": BLOCK * max(1, keeps // (8 * BLOCK)),
            "max_cache_size": keeps,
            "snapkv_window_size": 32,
        }
        full = need.requests * blocks(need.length)
        return _openvino(need, precision, min(full, peak), chunk) | {"evict": evict}

    return options


def openvino_evict_peak_tokens(need: Demand) -> int:
    """Return the peak tokens: one prompt in full, and each other request's kept blocks and two open ones."""
    return (need.requests - 1) * (budget(need.prompt) + 2 * BLOCK) + need.length


def _openvino(need: Demand, precision: str, num_blocks: int, chunk: int) -> Options:
    share = _u8_share(need.head_dim) if precision == "u8" else 1.0
    if need.cache_bytes is not None:
        num_blocks = int(need.cache_bytes / (BLOCK * need.token_bytes * share))
    return {
        "threads": need.threads,
        "properties": {"KV_CACHE_PRECISION": precision},
        "scheduler": {
            "num_kv_blocks": num_blocks,
            "max_num_batched_tokens": chunk,
            "max_num_seqs": max(need.requests, 2),
            "dynamic_split_fuse": True,
            "enable_prefix_caching": False,
        },
    }


def _u8_share(head_dim: int) -> float:
    """Return the share for 1-byte elements, and 8 bytes of scale and offset per value and per block's key channel."""
    keys, values = head_dim + 8 * head_dim / BLOCK, head_dim + 8
    return (keys + values) / (4 * head_dim)


# ---- the table ----


_GGUF: Mapping[Bits, str] = {16: "f16", 8: "q8_0", 4: "q4_0"}
_OPENVINO: Mapping[Bits, str] = {16: "f16", 8: "int8", 4: "int4"}
_BF16: Mapping[Bits, str] = {16: "bf16", 8: "bf16", 4: "bf16"}  # no low-bit weights on a CPU
_ours = partial(PeerEngine, environment="ringkv", worker="ringkv", format="hf", weights=OURS, fixed_size=True)
_llama = partial(
    PeerEngine,
    environment="llama.cpp",
    worker="llama_cpp",
    format="gguf",
    weights=_GGUF,
    peak_tokens=llama_cpp_peak_tokens,
)
_vino = partial(PeerEngine, environment="openvino", worker="openvino", format="openvino", weights=_OPENVINO)
_evict = partial(_vino, kept=budget, peak_tokens=openvino_evict_peak_tokens)
_vllm = partial(PeerEngine, environment="vllm", worker="vllm", format="hf", weights=_BF16, loads_once=True)

ENGINES: Mapping[str, PeerEngine] = {
    engine.name: engine
    for engine in (
        _ours("ringkv", options=ringkv, kept=budget, peak_tokens=ringkv_peak_tokens),
        _ours("ringkv-full", options=ringkv_full, peak_tokens=ringkv_full_peak_tokens),
        _llama("llama.cpp", options=llama_cpp("f16")),
        _llama("llama.cpp-noflash", options=llama_cpp("f16", flash=False)),
        _llama("llama.cpp-bf16kv", options=llama_cpp("bf16")),
        _llama("llama.cpp-q8kv", options=llama_cpp("q8_0"), shares=lambda head_dim: 34 / 64),  # 32 elements in 34 bytes
        _vllm("vllm", options=vllm, peak_tokens=vllm_peak_tokens),
        _vino("openvino", options=openvino("bf16")),
        _vino("openvino-u8kv", options=openvino("u8"), shares=_u8_share),
        _evict("openvino-evict", options=openvino_evict("bf16")),
        _evict("openvino-evict-u8kv", options=openvino_evict("u8"), shares=_u8_share),
    )
}
REFERENCE = "ringkv"  # the engine that ratios refer to
FULL = "ringkv-full"  # the engine whose greedy tokens the others' are compared with
