"""gguf_convert: converts a GGUF's configuration and weights to Hugging Face layout, in bfloat16, a block at a time.

Four-bit matrices are also stored without dequantising them, in a file of their own that `--weights int4` loads. The
tokenizer and generation_config.json are written by `text`.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ringkv.base.errors import UnsupportedModel
from ringkv.base.progress import Progress, silent
from ringkv.base.shown import shown_names
from ringkv.weights.files import GROUPS, SINGLE
from ringkv.weights.gguf import GGUF
from ringkv.weights.gguf_config import ROPE_DIVISORS, config_json, head_counts
from ringkv.weights.gguf_groups import GROUP, KINDS
from ringkv.weights.safetensors_writer import ITEM_BYTES, SafetensorsWriter, TensorSpec

TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_config(gguf: GGUF, directory: Path) -> None:
    """Write config.json. Raises UnsupportedModel or BadWeights before writing anything."""
    (directory / "config.json").write_text(json.dumps(config_json(gguf), indent=2) + "\n")


def shapes(gguf: GGUF) -> Mapping[str, tuple[int, ...]]:
    """Return the tensors that `write_weights` writes. Raises UnsupportedModel for one of no supported architecture."""
    return {name: gguf.shape(source) for name, source in _sources(gguf).items()}


def _sources(gguf: GGUF) -> dict[str, str]:
    """Return the GGUF's name of each tensor in Hugging Face layout."""
    return {hugging_face_name(name, gguf.path): name for name in gguf.names if name != ROPE_DIVISORS}


def write_weights(gguf: GGUF, directory: Path, progress: Progress = silent) -> None:
    """Write model.safetensors, of tensors whose `shapes` have been checked. Raises BadWeights for infinite values."""
    sources = _sources(gguf)
    specs = {name: TensorSpec(gguf.shape(source)) for name, source in sources.items()}
    done, total = 0, weight_bytes(gguf)
    with SafetensorsWriter(directory / SINGLE, specs) as writer:
        for source in sources.values():
            for values in gguf.rows(source, _row_order(gguf, source)):
                writer.append(values)
                done += values.size * ITEM_BYTES
                progress(done, total, "converting weights")


def write_groups(gguf: GGUF, directory: Path) -> None:
    """Write the layers' four-bit matrices, if there are any, as NAME.q, NAME.scale and NAME.least (the minimum)."""
    specs: dict[str, TensorSpec] = {}
    for source in (found := _four_bits(gguf)):
        rows, columns = gguf.shape(source)
        name, shared = hugging_face_name(source, gguf.path), TensorSpec((rows, columns // GROUP), "F16")
        specs |= {f"{name}.q": TensorSpec((rows, columns // 2), "U8"), f"{name}.scale": shared, f"{name}.least": shared}
    if not found:
        return
    with SafetensorsWriter(directory / GROUPS, specs) as writer:
        for source in found:
            for values in gguf.groups(source, _row_order(gguf, source)):
                writer.write(values)


def _four_bits(gguf: GGUF) -> list[str]:
    """Return the layers' four-bit matrices. A vector of a norm in four bits is only dequantised."""
    layers = [name for name in gguf.names if name.startswith("blk.") and gguf.kind(name) in KINDS]
    return [name for name in layers if len(gguf.shape(name)) == 2]


def weight_bytes(gguf: GGUF) -> int:
    """Bytes that `write_weights` writes."""
    return sum(math.prod(gguf.shape(name)) * ITEM_BYTES for name in gguf.names if name != ROPE_DIVISORS)


def group_bytes(gguf: GGUF) -> int:
    """Bytes that `write_groups` writes: per 32 elements 16 bytes, a scale and a minimum."""
    return sum(math.prod(gguf.shape(name)) // GROUP * 20 for name in _four_bits(gguf))


def hugging_face_name(name: str, path: Path) -> str:
    """Translate a name: `blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`."""
    if top := re.fullmatch(r"(\w+)\.(weight)", name):
        module = TOP_NAMES.get(top[1])
    elif layer := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
        part = LAYER_NAMES.get(layer[2])
        module = part and f"model.layers.{layer[1]}.{part}"
    else:
        module = None
    if not module:
        raise UnsupportedModel(
            f"{path} has a tensor {shown_names([name])}, which belongs to no architecture that ringkv runs"
        )
    return f"{module}.{name.rpartition('.')[2]}"


def _row_order(gguf: GGUF, name: str) -> npt.NDArray[np.intp] | None:
    """Return the GGUF row for each row of a query or key projection; None if rows are in order already.

    In each of Llama's heads GGUF interleaves the two halves of the rotary pairs; Hugging Face stores them one after the
    other.
    """
    if gguf.get("general.architecture") != "llama":
        return None
    projection = re.fullmatch(r"blk\.\d+\.attn_([qk])\.(weight|bias)", name)
    if not projection:
        return None
    heads, kv_heads = head_counts(gguf, "llama")
    rows = np.arange(gguf.shape(name)[0])
    return rows.reshape(heads if projection[1] == "q" else kv_heads, -1, 2).swapaxes(1, 2).reshape(-1)
