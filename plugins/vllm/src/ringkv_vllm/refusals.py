"""refusals: what cannot be combined with a cache of fixed size in vLLM. Each is refused when the server starts."""

from collections.abc import Callable, Mapping
from typing import Any

from ringkv.base.errors import InvalidRequest

REFUSED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "speculative decoding": (
        lambda config: config.speculative_config is not None,
        "a draft that is rejected has overwritten an entry of the ring",
    ),
    "a diffusion model": (
        lambda config: getattr(config, "diffusion_config", None) is not None,
        "it writes several tokens of an answer again and again",
    ),
    "a KV connector": (lambda config: config.kv_transfer_config is not None, "it moves a prompt's blocks by position"),
    "decode context parallelism": (
        lambda config: config.parallel_config.decode_context_parallel_size > 1,
        "it divides a request's tokens by position",
    ),
    "prefill context parallelism": (
        lambda config: config.parallel_config.prefill_context_parallel_size > 1,
        "it divides a request's tokens by position",
    ),
    "pipeline parallelism": (
        lambda config: config.parallel_config.pipeline_parallel_size > 1,
        "no test has run it",
    ),
    "a quantised KV cache": (
        lambda config: config.cache_config.cache_dtype not in ("auto", "float16", "bfloat16", "float32"),
        "selected entries are copied as they are stored in the model's dtype",
    ),
    "micro-batches (--enable-dbo)": (lambda config: config.parallel_config.enable_dbo, "they divide a step's rows"),
    "latent attention (MLA)": (
        lambda config: getattr(config.model_config, "use_mla", False),
        "its backends are others",
    ),
}
"""By feature: whether a configuration has it, and why it is refused."""


def check_config(config: Any) -> None:
    """Raise InvalidRequest if a `VllmConfig` has what cannot be combined."""
    for feature, (has, reason) in REFUSED.items():
        if has(config):
            raise InvalidRequest(f"ringkv-vllm does not serve with {feature}: {reason}; start without it")


def check_classes(config: Any) -> None:
    """Raise InvalidRequest unless scheduler and worker are the plug-in's, since neither works without the other."""
    given = {
        "--scheduler-cls": config.scheduler_config.scheduler_cls,
        "--worker-cls": config.parallel_config.worker_cls,
    }
    for flag, name in given.items():
        module = name if isinstance(name, str) else getattr(name, "__module__", "")
        if not module.startswith("ringkv_vllm."):
            raise InvalidRequest(
                f"{flag} is not a class of ringkv-vllm, which the settings of --additional-config need; "
                "use the command that `ringkv-vllm serve` prints"
            )


def check_layer(impl: Any) -> None:
    """Raise InvalidRequest for an attention layer that reads entries by their position, or shares a cache."""
    if impl.sliding_window not in (None, -1, (-1, -1)):
        raise InvalidRequest("ringkv-vllm does not serve layers with a sliding window, whose cache is small already")
    if impl.alibi_slopes is not None:
        raise InvalidRequest("ringkv-vllm does not serve ALiBi, which takes an entry's place for its position")
    if impl.kv_sharing_target_layer_name is not None:
        raise InvalidRequest("ringkv-vllm does not serve layers that share the cache of another layer")
