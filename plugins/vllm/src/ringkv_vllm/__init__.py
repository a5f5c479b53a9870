"""SnapStream inside vLLM: each request keeps a fixed number of KV cache entries.

    ringkv-vllm serve MODEL --kv-budget 4096
    vllm serve MODEL --additional-config '{"ringkv": {"kv_budget": 4096}}' ...   # the same, with vLLM's own flags

vLLM calls `register` in each of its processes. It does nothing until the settings above ask for it.
"""


def register() -> None:
    """Register the cache spec, its block manager and the attention backends. Raises UnknownSurface."""
    from ringkv_vllm.registration import register_all

    register_all()
