"""Tables from a GGUF's tensors to modules in Hugging Face layout.

Tensor names are those of the gguf package's constants.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple


class Part(NamedTuple):
    """What a GGUF's tensor holds: a tensor of a layer in Hugging Face layout, and which matrix of a stack it is."""

    name: str
    shape: tuple[int, ...]
    expert: int | None = None
    dtype: str = "BF16"


Shape = tuple[int, ...]
Parts = Callable[[str, Shape], Iterator[Part]]
"""Gives the parts of a tensor that ends with "weight" or "bias", and has this shape."""


def whole(module: str) -> Parts:
    """Map a tensor to one module."""
    return lambda suffix, shape: iter([Part(f"{module}.{suffix}", shape)])


def row(module: str) -> Parts:
    """Map a vector to a matrix of one row."""
    return lambda suffix, shape: iter([Part(f"{module}.{suffix}", (1, *shape))])


def stack(module: str) -> Parts:
    """Map a stack [experts, rows, columns] to a matrix per expert; `{}` in `module` is an expert's number."""

    def parts(suffix: str, shape: Shape) -> Iterator[Part]:
        return (Part(f"{module.format(at)}.{suffix}", shape[1:], at) for at in range(shape[0]))

    return parts


def plain(name: str, dtype: str = "BF16") -> Parts:
    """Map a tensor to a name without suffix."""
    return lambda suffix, shape: iter([Part(name, shape, dtype=dtype)])


def merged(suffix: str, shape: Shape) -> Iterator[Part]:
    """Map a tensor to nothing: it is a part of one that `Architecture.merged` gives."""
    return iter(())


Modules = Mapping[str, Parts]

SHARED: Modules = {
    "token_embd": whole("model.embed_tokens"),
    "output_norm": whole("model.norm"),
    "output": whole("lm_head"),
}
"""Modules outside of layers, by their names in a GGUF."""
SHARED_INPUTS: Modules = {
    **SHARED,
    "per_layer_token_embd": whole("model.embed_tokens_per_layer"),
    "per_layer_model_proj": whole("model.per_layer_model_projection"),
    "per_layer_proj_norm": whole("model.per_layer_projection_norm"),
}
SHARED_STREAMS: Modules = {
    **SHARED_INPUTS,
    "altup_proj": stack("model.altup_projections.{}"),
    "altup_unembd_proj": stack("model.altup_unembed_projections.{}"),
}

NORMS: Modules = {"attn_norm": whole("input_layernorm"), "ffn_norm": whole("post_attention_layernorm")}
SANDWICH: Modules = {
    "attn_norm": whole("input_layernorm"),
    "post_attention_norm": whole("post_attention_layernorm"),
    "ffn_norm": whole("pre_feedforward_layernorm"),
    "post_ffw_norm": whole("post_feedforward_layernorm"),
}
OUTPUT: Modules = {"attn_output": whole("self_attn.o_proj")}
ATTENTION: Modules = {
    "attn_q": whole("self_attn.q_proj"),
    "attn_k": whole("self_attn.k_proj"),
    "attn_v": whole("self_attn.v_proj"),
    **OUTPUT,
}
QK_NORMS: Modules = {"attn_q_norm": whole("self_attn.q_norm"), "attn_k_norm": whole("self_attn.k_norm")}
ROTATED_NORMS: Modules = {
    "attn_q_norm": whole("self_attn.query_layernorm"),
    "attn_k_norm": whole("self_attn.key_layernorm"),
}
DOWN: Modules = {"ffn_down": whole("mlp.down_proj")}
FEED_FORWARD: Modules = {"ffn_gate": whole("mlp.gate_proj"), "ffn_up": whole("mlp.up_proj"), **DOWN}
FUSED_FEED_FORWARD: Modules = {"ffn_up": whole("mlp.gate_up_proj"), **DOWN}
LAYER_INPUTS: Modules = {
    "inp_gate": whole("per_layer_input_gate"),
    "proj": whole("per_layer_projection"),
    "post_norm": whole("post_per_layer_input_norm"),
}
PARALLEL_EXPERTS: Modules = {
    "pre_ffw_norm_2": whole("pre_feedforward_layernorm_2"),
    "post_ffw_norm_1": whole("post_feedforward_layernorm_1"),
    "post_ffw_norm_2": whole("post_feedforward_layernorm_2"),
    "ffn_gate_inp": whole("router.proj"),
    "ffn_gate_inp.scale": plain("router.scale"),
    "ffn_down_exps.scale": plain("router.per_expert_scale"),
    **dict.fromkeys(("ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down_exps"), merged),
}
STREAMS: Modules = {
    "altup_correct_coef": whole("altup.correction_coefs"),
    "altup_correct_scale": plain("altup.correct_output_scale"),
    "altup_predict_coef": whole("altup.prediction_coefs"),
    "altup_router": whole("altup.modality_router"),
    "altup_router_norm": whole("altup.router_norm"),
    "laurel_l": whole("laurel.linear_left"),
    "laurel_r": whole("laurel.linear_right"),
    "laurel_post_norm": whole("laurel.post_laurel_norm"),
}
DENSE: Modules = {**NORMS, **ATTENTION, **FEED_FORWARD}
GEMMA: Modules = {**SANDWICH, **ATTENTION, **QK_NORMS, **FEED_FORWARD}
GEMMA4: Modules = {**GEMMA, **LAYER_INPUTS, "layer_output_scale": plain("layer_scalar")}
EXPERTS: Modules = {
    "ffn_gate_inp": whole("mlp.gate"),
    "ffn_gate_exps": stack("mlp.experts.{}.gate_proj"),
    "ffn_up_exps": stack("mlp.experts.{}.up_proj"),
    "ffn_down_exps": stack("mlp.experts.{}.down_proj"),
}
SHARED_EXPERT: Modules = {
    "ffn_gate_inp_shexp": row("mlp.shared_expert_gate"),
    "ffn_gate_shexp": whole("mlp.shared_expert.gate_proj"),
    "ffn_up_shexp": whole("mlp.shared_expert.up_proj"),
    "ffn_down_shexp": whole("mlp.shared_expert.down_proj"),
}
MIXTRAL_EXPERTS: Modules = {
    "ffn_gate_inp": whole("block_sparse_moe.gate"),
    "ffn_gate_exps": stack("block_sparse_moe.experts.{}.w1"),
    "ffn_up_exps": stack("block_sparse_moe.experts.{}.w3"),
    "ffn_down_exps": stack("block_sparse_moe.experts.{}.w2"),
}
HUNYUAN_EXPERTS: Modules = {
    **EXPERTS,
    "ffn_gate_inp": whole("mlp.gate.wg"),
    "ffn_gate_shexp": whole("mlp.shared_mlp.gate_proj"),
    "ffn_up_shexp": whole("mlp.shared_mlp.up_proj"),
    "ffn_down_shexp": whole("mlp.shared_mlp.down_proj"),
}
SINK_ATTENTION: Modules = {**ATTENTION, "attn_sinks": plain("self_attn.sinks")}
STACKED_EXPERTS: Modules = {
    "ffn_gate_inp": whole("mlp.router"),
    **dict.fromkeys(("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"), merged),
}
LATENT_ATTENTION: Modules = {
    "attn_q": whole("self_attn.q_proj"),
    "attn_q_a": whole("self_attn.q_a_proj"),
    "attn_q_a_norm": whole("self_attn.q_a_layernorm"),
    "attn_q_b": whole("self_attn.q_b_proj"),
    "attn_kv_a_mqa": whole("self_attn.kv_a_proj_with_mqa"),
    "attn_kv_a_norm": whole("self_attn.kv_a_layernorm"),
    "attn_kv_b": whole("self_attn.kv_b_proj"),
    **dict.fromkeys(("attn_k_b", "attn_v_b"), merged),
    **OUTPUT,
}
CORRECTED_EXPERTS: Modules = {
    **FEED_FORWARD,  # of the first layers
    **EXPERTS,
    "exp_probs_b": plain("mlp.gate.e_score_correction_bias", "F32"),
    "ffn_gate_shexp": whole("mlp.shared_experts.gate_proj"),
    "ffn_up_shexp": whole("mlp.shared_experts.up_proj"),
    "ffn_down_shexp": whole("mlp.shared_experts.down_proj"),
}
