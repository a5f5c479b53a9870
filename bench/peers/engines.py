"""engines: what is measured: a peer, and the settings that make it a fair or a strong one.

Every engine is greedy, never stops at the end of a text, shares no prefixes, and has the threads of `Need`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bench.peers.workload import BLOCK, ROOM, budget
from ringkv.base.kv import KVChoice

Bits = Literal[16, 8, 4]
Format = Literal["hf", "gguf", "openvino"]
Options = dict[str, Any]


@dataclass(frozen=True)
class Need:
    """What one process must serve. token_bytes: one token's keys and values at 16 bits, all layers and heads.

    groups: query heads for each key-value head.
    cache_bytes: keys and values may take no more than this, as in the equal-bytes protocol; None: what they need.
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
        """Tokens of one request, prompt and output."""
        return self.prompt + ROOM


@dataclass(frozen=True)
class Engine:
    """One row of the table.

    environment: where it runs, see `install`. worker: module of `workers`. weights: their name by bits.
    kept: prompt tokens a request holds while decoding. holds: the most tokens that all requests ever hold.
    shares: its cache's bytes over 16-bit ones, by head_dim.
    own_size: a process for each number of requests, because the number is fixed when it starts; the others start
    once for the largest. loads_once: one process for the whole run, as it takes a minute to start.
    slack: what it allocates for keys and values over what they fill. prefill_only: it decodes as another engine does.
    """

    name: str
    environment: str
    worker: str
    format: Format
    weights: Mapping[Bits, str]
    options: Callable[[Need], Options]
    kept: Callable[[int], int]
    holds: Callable[[Need], int]
    shares: Callable[[int], float] = lambda head_dim: 1.0
    own_size: bool = False
    loads_once: bool = False
    slack: float = 1.0
    prefill_only: bool = False


def everything(prompt: int) -> int:
    return prompt


def blocks(tokens: int, size: int = BLOCK) -> int:
    return -(-tokens // size)


def hold_everything(need: Need) -> int:
    return need.requests * need.length


# ---- ringkv ----

OURS: Mapping[Bits, str] = {16: "bf16", 8: "int8", 4: "int4"}


def ringkv(need: Need) -> Options:
    return _ringkv(need) | {"kv_policy": "snapstream", "kv_budget": budget(need.prompt)}


def ringkv_full(need: Need) -> Options:
    return _ringkv(need) | {"kv_policy": "full", "output_tokens": ROOM}


def ringkv_holds(need: Need) -> int:
    return need.requests * budget(need.prompt) + _staged(need)


def ringkv_full_holds(need: Need) -> int:
    return need.requests * need.length + _staged(need)


def _staged(need: Need) -> int:
    """One prompt, and the queries of its window: `groups` numbers where a token has two, a key's and a value's."""
    return need.prompt + KVChoice().window * need.groups // 2


def _ringkv(need: Need) -> Options:
    options: Options = {"slots": need.requests, "prompt_tokens": need.prompt, "threads": need.threads}
    return options if need.bits == 16 else options | {"weights": OURS[need.bits]}


# ---- llama.cpp ----

CELLS = 256  # a request's are a multiple


def llama_cpp_holds(need: Need) -> int:
    return need.requests * blocks(need.length, CELLS) * CELLS


def llama_cpp(cache: str, flash: bool) -> Callable[[Need], Options]:
    def options(need: Need) -> Options:
        trial = need.bits < 16  # such weights are repacked, which on some machines with AMX ends the process
        sizes: Options = {"slots": need.requests, "length": need.length, "threads": need.threads}
        return sizes | {"cache": cache, "flash": flash, "trial": trial}

    return options


# ---- vLLM ----

VLLM_BLOCK = 128


def vllm_holds(need: Need) -> int:
    """Whole blocks, and a spare one."""
    return (need.requests * blocks(need.length, VLLM_BLOCK) + 1) * VLLM_BLOCK


def vllm(need: Need) -> Options:
    return {
        "slots": need.requests,
        "length": need.length,
        "threads": need.threads,
        "dtype": "bfloat16",
        "cache_bytes": vllm_holds(need) * need.token_bytes if need.cache_bytes is None else need.cache_bytes,
    }


# ---- OpenVINO GenAI ----

CHUNK = 8192  # prompt tokens a step; longer ones are faster up to here


def openvino(precision: str) -> Callable[[Need], Options]:
    def options(need: Need) -> Options:
        return _openvino(need, precision, need.requests * blocks(need.length), CHUNK)

    return options


def openvino_evict(precision: str) -> Callable[[Need], Options]:
    def options(need: Need) -> Options:
        keeps = budget(need.prompt)
        # It evicts after a whole prompt, so while that runs the others hold their share and it holds all of its own;
        # where bytes count, steps are as long as one prompt, lest two lie there in full.
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


def openvino_evict_holds(need: Need) -> int:
    """The prompt that is being prefilled is there in full, beside what the others keep and the block each one fills."""
    return (need.requests - 1) * (budget(need.prompt) + 2 * BLOCK) + need.length


def openvino_sparse(mode: str, chunk: int) -> Callable[[Need], Options]:
    """Only what earlier steps left in the cache is read sparsely, so a step is a small part of the prompt."""

    def options(need: Need) -> Options:
        dense = _openvino(need, "bf16", need.requests * blocks(need.length), chunk)
        return dense | {"sparse": {"mode": mode}}

    return options


def _openvino(need: Need, precision: str, wanted: int, chunk: int) -> Options:
    share = _u8_share(need.head_dim) if precision == "u8" else 1.0
    if need.cache_bytes is not None:
        wanted = int(need.cache_bytes / (BLOCK * need.token_bytes * share))
    return {
        "threads": need.threads,
        "properties": {"KV_CACHE_PRECISION": precision},
        "scheduler": {
            "num_kv_blocks": wanted,
            "max_num_batched_tokens": chunk,
            "max_num_seqs": max(need.requests, 2),
            "dynamic_split_fuse": True,
            "enable_prefix_caching": False,
        },
    }


def _u8_share(head_dim: int) -> float:
    """A byte a number, and 8 bytes of scale and offset: for each channel of a block's keys, for each token's value."""
    keys, values = head_dim + 8 * head_dim / BLOCK, head_dim + 8
    return (keys + values) / (4 * head_dim)


def _q8_0_share(head_dim: int) -> float:
    """32 numbers in 34 bytes."""
    return 34 / 64


# ---- the table ----


def transformers(need: Need) -> Options:
    return {"threads": need.threads}


_GGUF: Mapping[Bits, str] = {16: "f16", 8: "q8_0", 4: "q4_0"}
_OPENVINO: Mapping[Bits, str] = {16: "f16", 8: "int8", 4: "int4"}
_BF16: Mapping[Bits, str] = {16: "bf16", 8: "bf16", 4: "bf16"}  # no fewer bits on a CPU


def _ours(
    name: str, options: Callable[[Need], Options], kept: Callable[[int], int], holds: Callable[[Need], int]
) -> Engine:
    return Engine(name, "ringkv", "ringkv", "hf", OURS, options, kept, holds, own_size=True)


def _llama(name: str, cache: str, flash: bool = True, shares: Callable[[int], float] = lambda _: 1.0) -> Engine:
    options = llama_cpp(cache, flash)
    return Engine(name, "llama.cpp", "llama_cpp", "gguf", _GGUF, options, everything, llama_cpp_holds, shares)


def _vino(
    name: str,
    options: Callable[[Need], Options],
    kept: Callable[[int], int] = everything,
    holds: Callable[[Need], int] = hold_everything,
    shares: Callable[[int], float] = lambda _: 1.0,
    prefill_only: bool = False,
) -> Engine:
    where = ("openvino", "openvino")
    return Engine(name, *where, "openvino", _OPENVINO, options, kept, holds, shares, prefill_only=prefill_only)


ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        _ours("ringkv", ringkv, budget, ringkv_holds),
        _ours("ringkv-full", ringkv_full, everything, ringkv_full_holds),
        _llama("llama.cpp", "f16"),
        _llama("llama.cpp-noflash", "f16", flash=False),
        _llama("llama.cpp-bf16kv", "bf16"),
        _llama("llama.cpp-q8kv", "q8_0", shares=_q8_0_share),
        Engine("vllm", "vllm", "vllm", "hf", _BF16, vllm, everything, vllm_holds, loads_once=True),
        _vino("openvino", openvino("bf16")),
        _vino("openvino-f16kv", openvino("f16")),
        _vino("openvino-u8kv", openvino("u8"), shares=_u8_share),
        _vino("openvino-evict", openvino_evict("bf16"), budget, openvino_evict_holds),
        _vino("openvino-evict-u8kv", openvino_evict("u8"), budget, openvino_evict_holds, _u8_share),
        _vino("openvino-xattention", openvino_sparse("XATTENTION", 1024), prefill_only=True),
        _vino("openvino-trishape", openvino_sparse("TRISHAPE", 512), prefill_only=True),
        Engine(
            "transformers",
            "transformers",
            "transformers",
            "hf",
            _BF16,
            transformers,
            everything,
            hold_everything,
            slack=2.5,
        ),
    )
}
REFERENCE = "ringkv"  # whom ratios are to
FULL = "ringkv-full"  # whose greedy tokens the others' are held against
