"""registration: what vLLM has to know of the plug-in in each process."""

from ringkv_vllm.surface import check_surface

BACKENDS = {
    "CPU_ATTN": "ringkv_vllm.backends.cpu.SnapStreamCPUBackend",
    "FLASH_ATTN": "ringkv_vllm.backends.flash.SnapStreamFlashBackend",
    "TRITON_ATTN": "ringkv_vllm.backends.triton.SnapStreamTritonBackend",
}


def register_all() -> None:
    """Register the spec with its manager, and a backend for each one that it replaces, which then asks for settings."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    from vllm.v1.kv_cache_interface import FullAttentionSpec
    from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

    from ringkv_vllm.manager import SnapStreamManager
    from ringkv_vllm.spec import SnapStreamSpec

    check_surface()
    # vLLM registers its own specs only while there are none.
    KVCacheSpecRegistry._ensure_registered()
    KVCacheSpecRegistry.register(SnapStreamSpec, SnapStreamManager, FullAttentionSpec)
    for name, path in BACKENDS.items():
        register_backend(AttentionBackendEnum[name], path)
