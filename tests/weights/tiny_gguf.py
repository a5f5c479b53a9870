"""Tiny GGUF files, written from a transformers model by the gguf package's own writer, laid out as llama.cpp does."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

Type = GGMLQuantizationType
TENSORS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_model(kind: str, **settings: Any) -> Any:
    """Return a random transformers model of "Llama", "Qwen2" or "Qwen3"; rows are whole blocks of 32."""
    sizes = {
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **settings})
    torch.manual_seed(2)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():  # so that a missing norm or bias changes the result
        for name, tensor in model.named_parameters():
            if "norm" in name or "bias" in name:
                tensor.uniform_(0.5, 1.5)
    return model


def write_tiny(
    path: Path,
    model: Any,
    quant: GGMLQuantizationType = Type.F32,
    metadata: dict[str, Any] | None = None,
    extra: dict[str, npt.NDArray[np.float32]] | None = None,
) -> Path:
    """Write `model` with its matrices quantised, and `extra` tensors.

    `metadata` adds keys or replaces them; None leaves a key out.
    """
    config = model.config
    kind = config.model_type
    writer = GGUFWriter(path, kind)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    keys = {
        f"{kind}.context_length": config.max_position_embeddings,
        f"{kind}.embedding_length": config.hidden_size,
        f"{kind}.block_count": config.num_hidden_layers,
        f"{kind}.feed_forward_length": config.intermediate_size,
        f"{kind}.attention.head_count": config.num_attention_heads,
        f"{kind}.attention.head_count_kv": config.num_key_value_heads,
        f"{kind}.attention.key_length": head_dim,
        f"{kind}.attention.value_length": head_dim,
        f"{kind}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{kind}.rope.freq_base": config.rope_parameters["rope_theta"],
        **(metadata or {}),
    }
    for key, value in keys.items():
        _add(writer, key, value)
    for name, tensor in {**tensors(model), **(extra or {})}.items():
        writer.add_tensor(name, tensor) if tensor.ndim == 1 else _add_matrix(writer, name, tensor, quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(model: Any) -> dict[str, npt.NDArray[np.float32]]:
    """Return every tensor under its GGUF name; Llama's query and key rows in GGUF's order."""
    found = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        module, _, suffix = name.rpartition(".")
        layer, short = ("", module)
        if module.startswith("model.layers."):
            _, _, index, short = module.split(".", 3)
            layer = f"blk.{index}."
        values = tensor.numpy()
        if model.config.model_type == "llama" and short in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = model.config.num_attention_heads if "q_" in short else model.config.num_key_value_heads
            values = interleaved(values, heads)
        found[f"{layer}{TENSORS[short]}.{suffix}"] = values
    return found


def interleaved(values: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Interleave the rows of each head's first and second half."""
    out = []
    for head in np.split(values, heads):
        first, second = np.split(head, 2)
        out += [row for pair in zip(first, second, strict=True) for row in pair]
    return np.array(out)


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    if isinstance(value, list):
        writer.add_array(key, value)
    elif value is not None:
        adders[type(value)](key, value)


def _add_matrix(writer: GGUFWriter, name: str, values: npt.NDArray[np.float32], quant: GGMLQuantizationType) -> None:
    writer.add_tensor(name, quantize(values, quant), raw_dtype=quant)
