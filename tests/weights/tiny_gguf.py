"""Tiny GGUF files, written from a transformers model by the gguf package's own writer, laid out as llama.cpp does."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, get_tensor_name_map
from gguf.quants import quantize
from safetensors.torch import load_file

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


CONFIGS = {"Gemma3": "Gemma3TextConfig", "Gemma3n": "Gemma3nTextConfig", "Gemma4": "Gemma4TextConfig"}


def tiny_model(kind: str, **settings: Any) -> Any:
    """Return a random transformers model of a kind such as "Llama"; rows are whole blocks of 32."""
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
    config = getattr(transformers, CONFIGS.get(kind, f"{kind}Config"))(**{**sizes, **settings})
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
    per_part: int = 0,
    others: dict[str, GGMLQuantizationType] | None = None,
) -> Path:
    """Write `model` with its matrices quantised, and `extra` tensors.

    `metadata` adds keys or replaces them; None leaves a key out. `per_part`: tensors in each of several files; 0: one
    file has all. `others`: types of matrices whose names have this part.
    """
    config = model.config
    kind = config.model_type
    writer = GGUFWriter(path, kind, split_max_tensors=per_part)
    keys = {
        **{f"{kind}.{key}": value for key, value in keys_of(config).items()},
        **(metadata or {}),
    }
    for key, value in keys.items():
        _add(writer, key, value)
    return _write(writer, path, {**tensors(model), **(extra or {})}, quant, others)


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


def _write(
    writer: GGUFWriter,
    path: Path,
    tensors: dict[str, npt.NDArray[np.float32]],
    quant: GGMLQuantizationType,
    others: dict[str, GGMLQuantizationType] | None = None,
) -> Path:
    """Add the tensors, matrices quantised, and write the file."""
    for name, tensor in tensors.items():
        chosen = next((kind for part, kind in (others or {}).items() if part in name), quant)
        kind = Type.F32 if tensor.ndim == 1 or name.endswith("bias") else chosen
        kind = kind if kind != Type.MXFP4 or "_exps" in name else Type.F32  # as in published files
        writer.add_tensor(name, quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_header(path: Path, kind: str, keys: dict[str, Any], shapes: dict[str, tuple[int, ...]] | None = None) -> Path:
    """Write metadata, whose keys are without the architecture, an embedding of 96 tokens, and tensors of zeros."""
    writer = GGUFWriter(path, kind)
    for key, value in keys.items():
        _add(writer, f"{kind}.{key}", value)
    whole = {"token_embd.weight": (96, 32), **(shapes or {})}
    return _write(writer, path, {name: np.zeros(shape, np.float32) for name, shape in whole.items()}, Type.F32)


def write_named(
    path: Path,
    model: Any,
    kind: str,
    metadata: dict[str, Any],
    extra: dict[str, npt.NDArray[np.float32] | None],
    quant: GGMLQuantizationType = Type.F32,
) -> Path:
    """Write `model` as the architecture `kind`, with the gguf package's names, from the checkpoint it saves.

    Matrices of experts are stacked, and matrices of one row are vectors. `metadata` has keys without the architecture.
    `extra` adds tensors; None leaves one out.
    """
    model.config.allow_global_per_layer_attribute_access = True  # Gemma 4's layers differ; metadata says how
    sizes = keys_of(model.config) | metadata
    writer = GGUFWriter(path, kind)
    for key, value in sizes.items():
        _add(writer, f"{kind}.{key}", value)
    all = {**named(model, kind, path.with_name("saved")), **extra}
    return _write(writer, path, {name: values for name, values in all.items() if values is not None}, quant)


def named(model: Any, kind: str, folder: Path) -> dict[str, npt.NDArray[np.float32]]:
    """Return the tensors of the checkpoint that `model` saves to `folder`, as llama.cpp's conversion names them."""
    model.save_pretrained(folder)
    of_kind = next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == kind)
    names = get_tensor_name_map(of_kind, model.config.num_hidden_layers)
    found: dict[str, list[npt.NDArray[np.float32]]] = {}
    saved = load_file(folder / "model.safetensors")
    for name in sorted(saved, key=lambda name: [int(part) if part.isdigit() else -1 for part in name.split(".")]):
        for part, values in SPLIT.get(kind, _whole)(name, saved[name].float().numpy()):
            merged = re.sub(r"\.experts\.\d+\.", ".experts.", part)
            stored = names.get_name(merged, try_suffixes=(".weight", ".bias", ".scale"))
            assert stored, name
            found.setdefault(stored, []).append(_reordered(values, stored, kind, model.config))
    return {name: np.stack(all) if len(all) > 1 else _row(all[0]) for name, all in found.items()}


Parts = Iterator[tuple[str, npt.NDArray[np.float32]]]


def _row(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return values[0] if values.ndim > 1 and len(values) == 1 else values


def _whole(name: str, values: npt.NDArray[np.float32]) -> Parts:
    yield name, values


def _gpt_oss(name: str, values: npt.NDArray[np.float32]) -> Parts:
    """Split gates from ups, transpose experts' matrices, and end each name with "weight" or "bias"."""
    stack, _, suffix = name.partition("_proj")
    if "experts" not in name:
        yield (f"{name}.weight" if name.endswith("sinks") else name), values
        return
    end = "bias" if suffix else "weight"
    rows = values if suffix else values.swapaxes(1, 2)
    if stack.endswith("down"):
        yield f"{stack}_proj.{end}", rows
    else:
        yield f"{stack.removesuffix('gate_up')}gate_proj.{end}", rows[:, ::2]
        yield f"{stack.removesuffix('gate_up')}up_proj.{end}", rows[:, 1::2]


def _corrected(name: str, values: npt.NDArray[np.float32]) -> Parts:
    yield name.replace("correction_bias", "correction.bias"), values


def _granite(name: str, values: npt.NDArray[np.float32]) -> Parts:
    """Split the one feed-forward of dense Granite 4 as Granite 3 has it."""
    layer, fused, _ = name.partition("shared_mlp.input_linear")
    if fused:
        gate, up = np.split(values, 2)
        yield f"{layer}mlp.gate_proj.weight", gate
        yield f"{layer}mlp.up_proj.weight", up
    else:
        yield name.replace("shared_mlp.output_linear", "mlp.down_proj"), values


def _gemma3n(name: str, values: npt.NDArray[np.float32]) -> Parts:
    """End each name with "weight", and name the projections of all streams alike, so that they are stacked."""
    ended = f"{name}.weight" if name.endswith("_scale") else name
    yield re.sub(r"(altup\w*_projections)\.\d+", r"\1", ended), values


def _gemma4(name: str, values: npt.NDArray[np.float32]) -> Parts:
    """End each name with "weight", or with "scale" and the matrix that a router's factors belong to."""
    for theirs, matrix in {"router.scale": "router.proj", "router.per_expert_scale": "experts.down_proj"}.items():
        name = name.replace(theirs, f"{matrix}.scale")
    yield name if name.endswith((".weight", ".scale")) else f"{name}.weight", values


SPLIT = {
    "gemma4": _gemma4,
    "gemma3n": _gemma3n,
    "granite": _granite,
    "gpt-oss": _gpt_oss,
    "deepseek2": _corrected,
    "glm4moe": _corrected,
}
"""How llama.cpp's conversion splits a checkpoint's tensor, by architecture."""


def _reordered(values: npt.NDArray[np.float32], name: str, kind: str, config: Any) -> npt.NDArray[np.float32]:
    """Return the rows as llama.cpp's conversion of Llama and of what derives from it stores them."""
    heads = {"attn_q.": config.num_attention_heads, "attn_k.": config.num_key_value_heads}
    for projection, count in heads.items():
        if kind in ("llama", "granite", "smollm3") and projection in name:
            return interleaved(values, count)
    return values + 1 if kind == "gemma3" and name.endswith("norm.weight") else values


def keys_of(config: Any) -> dict[str, Any]:
    """Return the metadata of sizes, without the architecture that each key begins with."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters.get("full_attention", config.rope_parameters)["rope_theta"],
    }
