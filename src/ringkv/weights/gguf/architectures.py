"""Architectures: how each architecture of GGUF files is written in Hugging Face layout.

Metadata keys are those of the gguf package's constants. Row orders and fixed settings follow llama.cpp's conversion and
graphs.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ringkv.base.errors import UnsupportedModel
from ringkv.base.shown import shown
from ringkv.weights.gguf import gemma, parts, routers
from ringkv.weights.gguf.fields import Windows, grouped, one_size, partial
from ringkv.weights.gguf.file import GGUF
from ringkv.weights.gguf.gpt_oss import experts, gpt_oss
from ringkv.weights.gguf.latent import latent, latent_matrices, latent_rope
from ringkv.weights.gguf.parts import Modules, modules, plain, row, shared_expert
from ringkv.weights.gguf.rope import rope_scaling
from ringkv.weights.gguf.source import Merged

Settings = Callable[[GGUF], dict[str, Any]]
"""Returns settings of config.json. Raises UnsupportedModel or BadWeights."""

NORMALISED = routers.softmax()
UNNAMED = Windows()


@dataclass(frozen=True)
class Architecture:
    """One architecture in both layouts.

    modules, shared: of a layer and outside of layers, by their names in a GGUF. numbers, factors: metadata keys of
    whole numbers and of decimals, by their names in config.json. fixed: settings that no key has. heads, feed_forward,
    router, more: compute settings. scaling: computes rope_scaling of heads that rotate so many elements. windows: what
    a sliding window means. paired: rows of query and key heads are in the order of rotary pairs. norm_shift: norm
    weights in the GGUF minus those in Hugging Face layout. merged: gives the tensors of a layer, such as "blk.3.", that
    are several in the GGUF, by their names in the layer in Hugging Face layout.
    """

    name: str
    model_type: str
    modules: Modules = field(default_factory=lambda: parts.DENSE)
    shared: Modules = field(default_factory=lambda: parts.SHARED)
    numbers: Mapping[str, str] = field(default_factory=dict)
    factors: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    heads: Settings = grouped
    feed_forward: Settings = one_size
    scaling: Callable[[GGUF, int], dict[str, Any] | None] = rope_scaling
    router: Settings = NORMALISED
    more: Settings = lambda gguf: {}
    windows: Windows = UNNAMED
    paired: bool = False
    norm_shift: float = 0.0
    merged: Callable[[GGUF, str], Iterator[tuple[str, Merged]]] = lambda gguf, layer: iter(())


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
        {**parts.NORMS, **modules("self_attn.", attn_qkv="qkv_proj", attn_output="o_proj"), **parts.FUSED_FEED_FORWARD},
        heads=partial,
        windows=IN_ALL_LAYERS,
    ),
    "glm4": Architecture(
        "Glm4ForCausalLM",
        "glm4",
        {
            **parts.NORMS,
            **modules(post_attention_norm="post_self_attn_layernorm", post_ffw_norm="post_mlp_layernorm"),
            **parts.ATTENTION,
            **parts.FUSED_FEED_FORWARD,
        },
        heads=partial,
    ),
    "olmo2": Architecture(  # OLMo 3's GGUFs have this, too
        "Olmo2ForCausalLM",
        "olmo2",
        {
            **modules(post_attention_norm="post_attention_layernorm", post_ffw_norm="post_feedforward_layernorm"),
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
            "embedding_multiplier": ".embedding_scale",
            "attention_multiplier": ".attention.scale",
            "residual_multiplier": ".residual_scale",
            "logits_scaling": ".logit_scale",
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
        more=gemma.gemma3,
        windows=Windows(6, local=True),
        norm_shift=1.0,
    ),
    "gemma3n": Architecture(
        "Gemma3nForCausalLM",
        "gemma3n_text",
        {**parts.GEMMA, **parts.LAYER_INPUTS, **parts.STREAMS},
        parts.SHARED_STREAMS,
        fixed=GELU,
        more=gemma.gemma3n,
        windows=Windows(5, local=True),
    ),
    "gemma4": Architecture(
        "Gemma4ForCausalLM",
        "gemma4_text",
        parts.GEMMA4,
        parts.SHARED_INPUTS,
        fixed=GELU,
        heads=gemma.gemma4_heads,
        feed_forward=gemma.gemma4_feed_forward,
        scaling=lambda gguf, head_dim: None,  # `gemma4` returns the rotary embedding
        more=gemma.gemma4,
        windows=gemma.GEMMA4_WINDOWS,
    ),
}
"""Dense models, by general.architecture."""


def _experts(
    chosen: str = "num_experts_per_tok", every: str = "num_experts", size: str = "moe_intermediate_size"
) -> Mapping[str, str]:
    """Return the metadata keys of experts, by the names that config.json has for their sizes."""
    return {every: ".expert_count", chosen: ".expert_used_count", size: ".expert_feed_forward_length"}


MIXTURES: Mapping[str, Architecture] = {
    "llama": Architecture(
        "MixtralForCausalLM",
        "mixtral",
        {**parts.NORMS, **parts.ATTENTION, **parts.MIXTRAL_EXPERTS},
        numbers={"num_local_experts": ".expert_count", "num_experts_per_tok": ".expert_used_count"},
        windows=IN_ALL_LAYERS,
        paired=True,
    ),
    "qwen2moe": Architecture(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        {
            **parts.NORMS,
            **parts.ATTENTION,
            **parts.EXPERTS,
            "ffn_gate_inp_shexp": row("mlp.shared_expert_gate"),
            **shared_expert("mlp.shared_expert."),
        },
        numbers={**_experts(), "shared_expert_intermediate_size": ".expert_shared_feed_forward_length"},
        fixed={**BIASED, "norm_topk_prob": False},
        router=routers.softmax(normalised=False),
        windows=QWEN,
    ),
    "qwen3moe": Architecture(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        {**parts.NORMS, **parts.ATTENTION, **parts.QK_NORMS, **parts.EXPERTS},
        numbers=_experts(),
        fixed={"norm_topk_prob": True},
        windows=QWEN,
    ),
    "gpt-oss": Architecture(
        "GptOssForCausalLM",
        "gpt_oss",
        {**parts.POST_NORMS, **parts.ATTENTION, "attn_sinks": plain("self_attn.sinks"), **parts.STACKED_EXPERTS},
        numbers=_experts(every="num_local_experts", size="intermediate_size"),
        router=routers.softmax_of_chosen,
        more=gpt_oss,
        windows=Windows(2),
        merged=experts,
    ),
    "deepseek2": Architecture(  # V3's GGUFs have this, too
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        {**parts.NORMS, **parts.LATENT_ATTENTION, **parts.CORRECTED_EXPERTS},
        heads=latent,
        router=routers.grouped,
        more=latent_rope,
        merged=latent_matrices,
    ),
    "glm4moe": Architecture(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        {**parts.POST_NORMS, **parts.ATTENTION, **parts.QK_NORMS, **parts.CORRECTED_EXPERTS},
        heads=partial,
        router=routers.corrected,
        more=lambda gguf: {"use_qk_norm": gguf.has("blk.0.attn_q_norm.weight")},
    ),
    "gemma4": replace(
        DENSE["gemma4"],
        modules={**parts.GEMMA4, **parts.PARALLEL_EXPERTS},
        numbers=_experts("top_k_experts"),
        fixed={**GELU, "enable_moe_block": True},
        merged=gemma.parallel_experts,
    ),
    "hunyuan-moe": Architecture(  # alpha is already in the rotary base
        "HunYuanMoEV1ForCausalLM",
        "hunyuan_v1_moe",
        {**parts.NORMS, **parts.ATTENTION, **parts.ROTATED_NORMS, **parts.HUNYUAN_EXPERTS},
        numbers={**_experts("moe_topk"), "num_shared_expert": ".expert_shared_count"},
    ),
}
"""Mixtures of experts, by general.architecture."""


def architecture_of(gguf: GGUF) -> Architecture:
    """Return the file's architecture. Raises UnsupportedModel for another one."""
    dense = not gguf.get(".expert_count", 0)
    architecture = (DENSE if dense else MIXTURES).get(gguf.architecture)
    if architecture is None:
        what = "" if dense else " with a mixture of experts"
        raise UnsupportedModel(
            f"GGUF architecture {shown(gguf.architecture)}{what} is not implemented; ringkv runs {', '.join(DENSE)}, "
            f"and mixtures of experts of {', '.join(MIXTURES)}"
        )
    return architecture
