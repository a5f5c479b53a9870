"""Tables from a GGUF's tensors to modules in Hugging Face layout.

Tensor names are those of the gguf package's constants.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from ringkv.weights.safetensors_writer import TensorSpec


class Part(NamedTuple):
    """What a GGUF's tensor holds: a tensor of a layer in Hugging Face layout, and which matrix of a stack it is."""

    name: str
    spec: TensorSpec
    expert: int | None = None


Shape = tuple[int, ...]
Parts = Callable[[str, Shape], Iterator[Part]]
"""Gives the parts of a tensor that ends with "weight" or "bias", and has this shape."""

Modules = Mapping[str, Parts]


def module(name: str) -> Parts:
    """Map a tensor to a module."""
    return lambda suffix, shape: iter([Part(f"{name}.{suffix}", TensorSpec(shape))])


def modules(prefix: str = "", /, **names: str) -> Modules:
    """Map tensors to modules, whose names follow a prefix."""
    return {tensor: module(f"{prefix}{name}") for tensor, name in names.items()}


def stack(module: str) -> Parts:
    """Map a stack [experts, rows, columns] to a matrix per expert; `{}` in `module` is an expert's number."""

    def parts(suffix: str, shape: Shape) -> Iterator[Part]:
        spec = TensorSpec(shape[1:])
        return (Part(f"{module.format(expert)}.{suffix}", spec, expert) for expert in range(shape[0]))

    return parts


def stacks(prefix: str, gate: str, up: str, down: str) -> Modules:
    """Map stacks of gates, ups and downs to an expert's matrices."""
    names = {"ffn_gate_exps": gate, "ffn_up_exps": up, "ffn_down_exps": down}
    return {tensor: stack(f"{prefix}.{name}") for tensor, name in names.items()}


def shared_expert(prefix: str) -> Modules:
    """Map the expert that serves every token."""
    return modules(prefix, ffn_gate_shexp="gate_proj", ffn_up_shexp="up_proj", ffn_down_shexp="down_proj")


def row(module: str) -> Parts:
    """Map a vector to a matrix of one row."""
    return lambda suffix, shape: iter([Part(f"{module}.{suffix}", TensorSpec((1, *shape)))])


def plain(name: str, dtype: str = "BF16") -> Parts:
    """Map a tensor to a name without suffix."""
    return lambda suffix, shape: iter([Part(name, TensorSpec(shape, dtype))])


def merged(*tensors: str) -> Modules:
    """Map tensors to nothing: they are parts of those that `Architecture.merged` gives."""
    return dict.fromkeys(tensors, lambda suffix, shape: iter(()))


SHARED = {**modules("model.", token_embd="embed_tokens", output_norm="norm"), "output": module("lm_head")}
"""Modules outside of layers, by their names in a GGUF."""
SHARED_INPUTS = {
    **SHARED,
    **modules(
        "model.",
        per_layer_token_embd="embed_tokens_per_layer",
        per_layer_model_proj="per_layer_model_projection",
        per_layer_proj_norm="per_layer_projection_norm",
    ),
}
SHARED_STREAMS = {
    **SHARED_INPUTS,
    "altup_proj": stack("model.altup_projections.{}"),
    "altup_unembd_proj": stack("model.altup_unembed_projections.{}"),
}

NORMS = modules(attn_norm="input_layernorm", ffn_norm="post_attention_layernorm")
POST_NORMS = modules(attn_norm="input_layernorm", post_attention_norm="post_attention_layernorm")
SANDWICH = {**POST_NORMS, **modules(ffn_norm="pre_feedforward_layernorm", post_ffw_norm="post_feedforward_layernorm")}
ATTENTION = modules("self_attn.", attn_q="q_proj", attn_k="k_proj", attn_v="v_proj", attn_output="o_proj")
QK_NORMS = modules("self_attn.", attn_q_norm="q_norm", attn_k_norm="k_norm")
ROTATED_NORMS = modules("self_attn.", attn_q_norm="query_layernorm", attn_k_norm="key_layernorm")
FEED_FORWARD = modules("mlp.", ffn_gate="gate_proj", ffn_up="up_proj", ffn_down="down_proj")
FUSED_FEED_FORWARD = modules("mlp.", ffn_up="gate_up_proj", ffn_down="down_proj")
LAYER_INPUTS = modules(
    inp_gate="per_layer_input_gate", proj="per_layer_projection", post_norm="post_per_layer_input_norm"
)
PARALLEL_EXPERTS = {
    **modules(
        pre_ffw_norm_2="pre_feedforward_layernorm_2",
        post_ffw_norm_1="post_feedforward_layernorm_1",
        post_ffw_norm_2="post_feedforward_layernorm_2",
        ffn_gate_inp="router.proj",
    ),
    "ffn_gate_inp.scale": plain("router.scale"),
    "ffn_down_exps.scale": plain("router.per_expert_scale"),
    **merged("ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down_exps"),
}
STREAMS = {
    **modules(
        altup_correct_coef="altup.correction_coefs",
        altup_predict_coef="altup.prediction_coefs",
        altup_router="altup.modality_router",
        altup_router_norm="altup.router_norm",
        laurel_l="laurel.linear_left",
        laurel_r="laurel.linear_right",
        laurel_post_norm="laurel.post_laurel_norm",
    ),
    "altup_correct_scale": plain("altup.correct_output_scale"),
}
DENSE = {**NORMS, **ATTENTION, **FEED_FORWARD}
GEMMA = {**SANDWICH, **ATTENTION, **QK_NORMS, **FEED_FORWARD}
GEMMA4 = {**GEMMA, **LAYER_INPUTS, "layer_output_scale": plain("layer_scalar")}
EXPERTS = {"ffn_gate_inp": module("mlp.gate"), **stacks("mlp.experts.{}", "gate_proj", "up_proj", "down_proj")}
MIXTRAL_EXPERTS = {
    "ffn_gate_inp": module("block_sparse_moe.gate"),
    **stacks("block_sparse_moe.experts.{}", "w1", "w3", "w2"),
}
HUNYUAN_EXPERTS = {**EXPERTS, "ffn_gate_inp": module("mlp.gate.wg"), **shared_expert("mlp.shared_mlp.")}
STACKED_EXPERTS = {"ffn_gate_inp": module("mlp.router"), **merged("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")}
LATENT_ATTENTION = {
    **modules(
        "self_attn.",
        attn_q="q_proj",
        attn_q_a="q_a_proj",
        attn_q_a_norm="q_a_layernorm",
        attn_q_b="q_b_proj",
        attn_kv_a_mqa="kv_a_proj_with_mqa",
        attn_kv_a_norm="kv_a_layernorm",
        attn_kv_b="kv_b_proj",
        attn_output="o_proj",
    ),
    **merged("attn_k_b", "attn_v_b"),
}
CORRECTED_EXPERTS = {
    **FEED_FORWARD,  # of the first layers
    **EXPERTS,
    "exp_probs_b": plain("mlp.gate.e_score_correction_bias", "F32"),
    **shared_expert("mlp.shared_experts."),
}
