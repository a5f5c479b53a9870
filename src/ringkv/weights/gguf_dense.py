"""gguf_dense: the dense architectures of GGUF files, as a table.

Metadata keys are those of the gguf package's constants. Row orders and fixed settings follow llama.cpp's conversion and
graphs.
"""

from collections.abc import Mapping

from ringkv.weights import gguf_gemma4
from ringkv.weights import gguf_parts as parts
from ringkv.weights.gguf_architecture import Architecture
from ringkv.weights.gguf_gemma3 import gemma3
from ringkv.weights.gguf_gemma3n import gemma3n
from ringkv.weights.gguf_heads import partial
from ringkv.weights.gguf_parts import whole
from ringkv.weights.gguf_windows import Windows

BIASED = {"attention_bias": False}  # the setting is for o_proj, too; queries, keys and values always have biases
GELU = {"hidden_act": None, "hidden_activation": "gelu_pytorch_tanh"}
IN_ALL_LAYERS = Windows(period=0)
QWEN = Windows(settings={"use_sliding_window": True})

DENSE: Mapping[str, Architecture] = {
    "llama": Architecture(  # Mistral's GGUFs have this, too
        "LlamaForCausalLM",
        "llama",
        windows=Windows(0, {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}),
        paired=True,
    ),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2", fixed=BIASED, windows=QWEN),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3", {**parts.DENSE, **parts.QK_NORMS}, windows=QWEN),
    "phi3": Architecture(
        "Phi3ForCausalLM",
        "phi3",
        {**parts.NORMS, "attn_qkv": whole("self_attn.qkv_proj"), **parts.OUTPUT, **parts.FUSED_FEED_FORWARD},
        heads=partial,
        windows=IN_ALL_LAYERS,
    ),
    "glm4": Architecture(
        "Glm4ForCausalLM",
        "glm4",
        {
            **parts.NORMS,
            "post_attention_norm": whole("post_self_attn_layernorm"),
            "post_ffw_norm": whole("post_mlp_layernorm"),
            **parts.ATTENTION,
            **parts.FUSED_FEED_FORWARD,
        },
        heads=partial,
    ),
    "olmo2": Architecture(  # OLMo 3's GGUFs have this, too
        "Olmo2ForCausalLM",
        "olmo2",
        {
            "post_attention_norm": whole("post_attention_layernorm"),
            "post_ffw_norm": whole("post_feedforward_layernorm"),
            **parts.ATTENTION,
            **parts.QK_NORMS,
            **parts.FEED_FORWARD,
        },
        windows=Windows(4, {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3"}),
    ),
    "granite": Architecture(
        "GraniteForCausalLM",
        "granite",
        factors={
            "embedding_multiplier": "embedding_scale",
            "attention_multiplier": "attention.scale",
            "residual_multiplier": "residual_scale",
            "logits_scaling": "logit_scale",
        },
        paired=True,
    ),
    "smollm3": Architecture("SmolLM3ForCausalLM", "smollm3", fixed={"no_rope_layer_interval": 4}, paired=True),
    "hunyuan-dense": Architecture(  # alpha is already in the rotary base
        "HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", {**parts.DENSE, **parts.ROTATED_NORMS}
    ),
    "gemma3": Architecture(
        "Gemma3ForCausalLM",
        "gemma3_text",
        parts.GEMMA,
        fixed=GELU,
        own=gemma3,
        windows=Windows(6, local=True),
        norm_shift=1.0,
    ),
    "gemma3n": Architecture(
        "Gemma3nForCausalLM",
        "gemma3n_text",
        {**parts.GEMMA, **parts.LAYER_INPUTS, **parts.STREAMS},
        parts.SHARED_STREAMS,
        fixed=GELU,
        own=gemma3n,
        windows=Windows(5, local=True),
    ),
    "gemma4": Architecture(
        "Gemma4ForCausalLM",
        "gemma4_text",
        parts.GEMMA4,
        parts.SHARED_INPUTS,
        fixed=GELU,
        heads=gguf_gemma4.heads,
        feed_forward=gguf_gemma4.feed_forward,
        scaling=gguf_gemma4.unscaled,
        own=gguf_gemma4.gemma4,
        windows=gguf_gemma4.WINDOWS,
    ),
}
"""Dense models, by general.architecture."""
