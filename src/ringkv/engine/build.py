"""build: an EngineConfig becomes an engine, with all its memory allocated and its graphs ready."""

import hashlib
import logging
import os
from functools import cache, partial
from pathlib import Path

import torch

from ringkv.base.cannot import refuse
from ringkv.base.config import EngineConfig
from ringkv.base.errors import InvalidRequest
from ringkv.base.progress import Progress, silent
from ringkv.base.repeat_words import FindWords, no_words
from ringkv.base.wanted import Start, of_engine
from ringkv.cache.allocate import allocate_slots
from ringkv.cache.tier import allocate_tier
from ringkv.engine import programs
from ringkv.engine.batch import Batch
from ringkv.engine.device import find_device, with_index
from ringkv.engine.drafts import Drafts
from ringkv.engine.engine import LocalEngine
from ringkv.engine.lanes import Lanes
from ringkv.engine.load import ModelWeights, load
from ringkv.engine.passes import Passes
from ringkv.engine.sizes import MOST_WITH_DRAFTS, EngineSizes
from ringkv.engine.staging import Staging
from ringkv.engine.turns import Turns
from ringkv.graphs.aot import AheadOfTime
from ringkv.graphs.background import Background
from ringkv.graphs.capture import CudaGraphs, no_capture
from ringkv.graphs.graph import Backend, Eager
from ringkv.graphs.inductor import Inductor
from ringkv.kernels import native
from ringkv.machine.compiler import find_compiler, missing_for_graphs, missing_for_kernels
from ringkv.models.config import ModelConfig, load_config
from ringkv.models.decoder import Decoder
from ringkv.models.slot_formats import check_profile, check_request, check_sizes

log = logging.getLogger(__name__)
KERNELS_SECONDS = 150  # of processor time, to compile the CPU kernels
ROOMS = ("cache", "engine", "graphs", "kernels", "models")  # whose Python files a graph can depend on


@torch.inference_mode()
def build(config: EngineConfig, tell: Progress = silent, find_words: FindWords = no_words) -> LocalEngine:
    """Load weights, allocate slots and staging, make graphs. The first build compiles them, and takes longest.

    tell: called with progress. find_words: how the model is asked to repeat a prompt; if not at all, it repeats prompts
    without being asked. Raises UnsupportedModel or BadWeights for a model directory that cannot be run, and
    InvalidRequest for a configuration.
    """
    assert config.rank.count == 1 or config.exchange != "none", "a rank needs the others: ringkv.ranks.build"
    torch.set_num_threads(config.threads)
    device, dtype = _device(config.device), getattr(torch, config.dtype)
    model = load_config(config.model_dir).of_rank(config.rank, config.exchange, config.attention_parallel)
    model = model.with_slots(config.slot_format)
    drafter = str(config.drafter.model_dir) if config.drafter else ""
    start = Start(config.speculate, config.rank.count, config.device, draft_model=drafter)
    refuse(of_engine(model, config.slot_format, config.kv, start))
    check_sizes(model, config.slot_format, config.device)
    check_request(model.groups, config.kv)
    check_profile(config.kv.heads, bool(config.head_shares))
    _load_kernels(config, tell)
    stored = config.weights, config.rank, config.activations
    weights = load(config.model_dir, model, dtype, device, tell, *stored)
    sizes = EngineSizes.of(config, weights)
    if config.speculate and sizes.drafts.none:
        raise InvalidRequest(
            f"speculate {config.speculate} would never run: a step of {config.slots} slots has more than "
            f"{MOST_WITH_DRAFTS} tokens with it, or other rounding than without; choose fewer slots, or 0",
            "speculate",
        )
    backend = _backend(config, tell, programs.count(sizes, len(set(model.variants)), device))
    engine = assemble(config, model, weights, backend, find_words)
    if config.drafter:
        engine.draft_with(build(config.drafter, tell))
    if isinstance(backend, Background):
        backend.start()
    elif isinstance(backend, AheadOfTime):
        backend.discard_headers()
    return engine


@torch.inference_mode()
def assemble(
    config: EngineConfig, model: ModelConfig, weights: ModelWeights, backend: Backend, find_words: FindWords = no_words
) -> LocalEngine:
    """Build an engine around loaded weights: allocate everything else and make the graphs."""
    device, dtype = with_index(torch.device(config.device)), getattr(torch, config.dtype)
    if device.type == "cuda":
        # For the whole process: products with a split K dimension add their parts in float32.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    decoder, like = Decoder(model, dtype, device), torch.empty(0, dtype=dtype, device=device)
    staging = Staging(decoder, config, like)
    assert config.slots % config.slot_ranks == 0, "ranks would have different numbers of slots"
    rows, tier = config.slots // config.slot_ranks, allocate_tier(config, like)
    slots = tuple(
        allocate_slots(group.in_slots, rows, group.entries(config.capacity), like.new_zeros, tier)
        for group in decoder.groups
    )
    made = programs.make(backend, decoder, weights, staging, slots, config)
    turns, passes = Turns(config, model, like), Passes(made, staging, slots)
    lanes = Lanes(passes, turns, config, find_words)
    capture = CudaGraphs(device) if device.type == "cuda" and config.graphs == "compiled" else no_capture
    batch = Batch(made, slots, capture)
    return LocalEngine(config, passes, lanes, batch, Drafts(batch, capture), turns)


def _device(name: str) -> torch.device:
    device = find_device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # Triton launches on the current device
    return device


def _backend(config: EngineConfig, tell: Progress, total: int) -> Backend:
    if config.graphs == "off":
        return Eager()
    compiler = find_compiler()
    if compiler is None:
        if torch.device(config.device).type == "cuda":  # for a CPU, `_load_kernels` says so
            log.warning("running without compiled graphs: %s", missing_for_graphs())
        return Eager()
    done = iter(range(total))

    def on_build(name: str) -> None:
        tell(next(done), total, f"compiling {name} (once; kept on disk)")

    if torch.device(config.device).type == "cuda":
        return Inductor(config.cache_dir / "inductor", on_build)
    folder, source = config.cache_dir / "graphs", _source_digest()
    ahead = AheadOfTime(folder, compiler.path, source, on_build, partial(_tell_waiting, tell))
    if config.graphs == "background":
        return Background(ahead, partial(_load_operators, config.cache_dir))
    return ahead


@cache
def _source_digest() -> str:
    """Return the digest of the files of `ROOMS`.

    It is part of a graph's key on disk, so that another version's graphs are not loaded.
    """
    root = Path(__file__).parent.parent
    files = sorted(path for room in ROOMS for path in (root / room).rglob("*.py"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def _tell_waiting(tell: Progress, name: str) -> None:
    tell(0, 0, f"waiting for another ringkv to compile {name}")


def _tell_compiling(tell: Progress, done: int, total: int) -> None:
    seconds = KERNELS_SECONDS // (os.cpu_count() or 1)
    tell(done, total, f"compiling CPU kernels, {done} of {total} files, about {seconds} s on idle cores; kept on disk")


def _load_kernels(config: EngineConfig, tell: Progress) -> None:
    """Load the C++ operators, and say what this machine lacks for full speed. Without them the torch references run."""
    if torch.device(config.device).type != "cpu":
        return
    tell(0, 1, "loading CPU kernels")
    if _load_operators(config.cache_dir, tell) and (missing := missing_for_graphs()):
        log.warning("running without compiled graphs, slower: %s", missing)


def _load_operators(cache_dir: Path, tell: Progress = silent) -> bool:
    """Load the package's C++ operators, or build them; return whether it was possible."""
    compiler = None if missing_for_kernels() else find_compiler()
    callbacks = partial(_tell_compiling, tell), partial(_tell_waiting, tell, "CPU kernels")
    try:
        native.load(compiler.path if compiler else None, cache_dir / "kernels", *callbacks)
    except RuntimeError as error:
        log.warning("running without C++ kernels, slower: %s", error)
        return False
    return True
